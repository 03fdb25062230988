"""What the existing Go, Python and TypeScript programs demand of a shard, checked slowly and by the books.

Written from the documents of the format: nothing of our reader, layout or toolbox is imported.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import zstandard

from tests.formats.plain_decoder import decode, number

SIZES = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4,
    "u16": 2, "u8": 1, "bool": 1,
}  # fmt: skip
MAX_ENTRIES, MAX_STRING_TABLE, MAX_RAW, MAX_LZ4 = 10_000_000, 100_000_000, 1 << 30, 256 << 20
CODECS = {0x0: "none", 0x3: "zstd", 0x5: "lz4"}
_P = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_MASK = (1 << 64) - 1


def _turned(value: int, by: int) -> int:
    return ((value << by) | (value >> (64 - by))) & _MASK


def _round(lane: int, word: int) -> int:
    return _turned((lane + word * _P[1]) & _MASK, 31) * _P[0] & _MASK


def xxh64(data: bytes) -> int:
    """XXH64 with seed 0, word by word."""
    at = 0
    if len(data) >= 32:
        lanes = [(_P[0] + _P[1]) & _MASK, _P[1], 0, -_P[0] & _MASK]
        while at + 32 <= len(data):
            lanes = [_round(lane, number(data, at + 8 * i, 8)) for i, lane in enumerate(lanes)]
            at += 32
        found = sum(_turned(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * _P[0] + _P[3]) & _MASK
    else:
        found = _P[4]
    found = (found + len(data)) & _MASK
    while at + 8 <= len(data):
        found = (_turned(found ^ _round(0, number(data, at, 8)), 27) * _P[0] + _P[3]) & _MASK
        at += 8
    if at + 4 <= len(data):
        found = (_turned(found ^ number(data, at, 4) * _P[0] & _MASK, 23) * _P[1] + _P[2]) & _MASK
        at += 4
    for byte in data[at:]:
        found = _turned(found ^ byte * _P[4] & _MASK, 11) * _P[0] & _MASK
    for by, factor in ((33, _P[1]), (29, _P[2])):
        found = (found ^ (found >> by)) * factor & _MASK
    return found ^ (found >> 32)


def validate(data: bytes) -> dict[str, Any]:
    """Raise AssertionError unless every one of the programs takes this episode; returns its blocks and metadata."""
    _container(data)
    blocks = decode(data)  # every codec, size and checksum
    meta = {name: json.loads(blocks[f"meta/{name}"]) for name in ("wshard", "episode", "channels")}
    _episode(blocks, meta)
    return {"blocks": blocks, **meta}


def _container(data: bytes) -> None:
    assert data[:4] == b"SHRD"
    assert (data[4], data[5]) == (2, 5), "version 2, role 5"
    assert data[8] in (0, 16, 32, 64), "alignment"
    assert data[9] in (0, 1, 2), "default codec"
    assert number(data, 0x0A, 2) == 48, "entry size"
    count, strings, start = number(data, 0x0C, 4), number(data, 0x10, 8), number(data, 0x18, 8)
    assert count <= MAX_ENTRIES
    assert strings == 64 + 48 * count
    assert strings <= start <= len(data)
    assert start - strings <= MAX_STRING_TABLE
    assert number(data, 0x28, 8) == len(data), "the stated size is the real one"
    end, names = start, set()
    for index in range(count):
        at = 64 + 48 * index
        name_at, length = strings + number(data, at + 8, 4), number(data, at + 12, 2)
        assert name_at + length <= start, "a name lies in the string table"
        name = data[name_at : name_at + length]
        text = name.decode("utf-8")
        assert text
        assert "\0" not in text
        assert text not in names, f"two blocks are called {text}"
        names.add(text)
        assert number(data, at, 8) == xxh64(name), f"the hash of {text}"
        codec = CODECS.get(number(data, at + 14, 2))
        assert codec is not None, f"the flags of {text}"
        offset, size, raw = (number(data, at + place, 8) for place in (16, 24, 32))
        assert offset >= end, f"{text} is not behind the block before it"
        end = offset + size
        assert end <= len(data)
        if codec == "none":
            assert size == raw
        else:
            assert raw <= (MAX_LZ4 if codec == "lz4" else MAX_RAW)
            assert size != raw, "a compressed block as large as it was is taken for raw"
        if codec == "zstd":
            _one_frame(data[offset : offset + size], raw, text)
        if text.startswith("meta/"):
            assert codec == "none", f"{text} is shown by the viewer of the browser"


def _one_frame(frame: bytes, raw: int, name: str) -> None:
    """Python and TypeScript decode one frame and stop."""
    found = zstandard.ZstdDecompressor().decompressobj()
    assert len(found.decompress(frame)) == raw, name
    assert not found.unused_data, f"{name} has a second frame"
    assert zstandard.get_frame_parameters(frame).content_size == raw, name


def _episode(blocks: dict[str, bytes], meta: dict[str, Any]) -> None:
    episode = meta["episode"]
    length = episode["length_T"]
    assert isinstance(length, int)
    assert length >= 0
    assert isinstance(episode["episode_id"], str)
    assert episode["episode_id"]
    timebase = episode["timebase"]
    assert timebase["type"] in ("ticks", "timestamps_ns")
    assert timebase["dt_ns"] > 0
    _timing(blocks, length)
    # Python reads rewards as f32 and flags as bytes whatever was written; Go needs both blocks.
    assert len(blocks["reward"]) == 4 * length, "a reward per step, as f32"
    assert len(blocks["done"]) == length, "a flag per step, as a byte"
    assert set(blocks["done"]) <= {0, 1}
    listed: dict[str, str] = {}
    for channel in meta["channels"]["channels"]:
        block = channel.get("signal_block", f"signal/{channel['id']}")
        assert block not in listed, f"{block} is listed twice"
        assert block.partition("/")[0] in ("signal", "action"), f"{block} is no place for a channel"
        assert block == f"{block.partition('/')[0]}/{channel['id']}"
        assert channel["dtype"] in SIZES, channel
        assert all(isinstance(size, int) and size > 0 for size in channel["shape"]), channel
        row = SIZES[channel["dtype"]] * math.prod(channel["shape"])
        assert len(blocks[block]) == length * row, f"{block} has a row per step"
        listed[block] = channel["dtype"]
    for name in blocks:
        kind = name.partition("/")[0]
        if kind in ("signal", "action"):
            assert name in listed, f"{name} is not listed: its type is unknown"
        else:
            assert kind in KNOWN, f"{name} is in no namespace that the programs know or ignore"


KNOWN = {"meta", "time", "reward", "done", "omen", "uncert", "residual", "aux", "debug", "video", "truncated"}


def _timing(blocks: dict[str, bytes], length: int) -> None:
    present = [name for name in ("time/ticks", "time/timestamps_ns") if name in blocks]
    assert present, "a time block"
    for name in present:
        size = 4 if name == "time/ticks" else 8
        assert len(blocks[name]) == length * size, f"{name} has a time per step"
        stamps = [
            int.from_bytes(blocks[name][at : at + size], "little", signed=True)
            for at in range(0, len(blocks[name]), size)
        ]
        assert all(a < b for a, b in itertools.pairwise(stamps)), f"{name} goes forward"
