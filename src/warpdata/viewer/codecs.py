"""Name of a camera's codec for browsers, and the configuration of their decoder."""

from __future__ import annotations

from dataclasses import dataclass

from warpdata.formats.episodedir.images import Stream

_START_CODE = b"\x00\x00\x01"


@dataclass(frozen=True, slots=True)
class WebCodec:
    """The name of a codec with its profile, and its description; empty where frames carry it themselves."""

    name: str
    description: bytes


def web_codec(stream: Stream) -> WebCodec | None:
    """The codec for WebCodecs; None where browsers do not decode it, so frames are sent as pixels."""
    extra = stream.extradata
    if stream.codec == "h264" and stream.pix_fmt in ("yuv420p", "yuvj420p"):
        if len(extra) >= 4 and extra[0] == 1:  # the box avcC
            return WebCodec(f"avc1.{extra[1]:02x}{extra[2]:02x}{extra[3]:02x}", extra)
        at = extra.find(_START_CODE)
        return (
            None if at < 0 or len(extra) < at + 7 else WebCodec(f"avc1.{extra[at + 4 : at + 7].hex()}", b"")
        )
    if stream.codec == "av1" and stream.pix_fmt == "yuv420p" and len(extra) >= 4:
        profile, level, tier = extra[1] >> 5, extra[1] & 31, "H" if extra[2] & 0x80 else "M"
        return WebCodec(f"av01.{profile}.{level:02d}{tier}.08", b"")
    if stream.codec == "vp9" and stream.pix_fmt == "yuv420p":
        return WebCodec("vp09.00.41.08", b"")
    return WebCodec("vp8", b"") if stream.codec == "vp8" else None
