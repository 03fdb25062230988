"""Write the conformance suite of WShard: `python -m tools.make_conformance [FOLDER]`.

Small files that show every rule of SPEC.md, good and damaged, and `expected.json`: what Python reads in them and in the
golden files, or the code of the error that refuses them. Python, TypeScript and Go are all held against it.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import zstandard
from tests.conformance.describe import describe, plain

import warpdata as wd
from tools.make_golden import every_lane, every_word
from warpdata.bytekit.arrays import DTYPE_NAMES, align_up, dtype_named
from warpdata.bytekit.checksum import crc32c, fnv1a64, xxh64
from warpdata.bytekit.codec import encode, encode_seekable, pack_seek_table
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.layout import table_crc32c

TESTS = Path(__file__).resolve().parent.parent / "tests"
STEPS = 4
FLAGS_SEEKABLE = layout.ENTRY_FLAGS["zstd"] | layout.ENTRY_SEEKABLE


class File:
    """A shard put together by hand, so that every byte of it can be wrong."""

    def __init__(self, blocks: dict[str, Any] | None = None, **header: int) -> None:
        self.blocks = dict(base_blocks() if blocks is None else blocks)
        self.header = {
            "version": 2,
            "role": 5,
            "alignment": 64,
            "default": 0,
            "entry_size": 48,
            "schema_offset": 0,
            **header,
        }
        self.is_marked = True
        self.hash: Callable[[bytes], int] = xxh64
        self.between = b""
        self.order: Callable[[list[Any]], list[Any]] = list
        self.tail = b""
        self.entry: Callable[[str, dict[str, Any]], None] | None = None

    def build(self) -> bytes:
        """The bytes of the file."""
        names = [name if isinstance(name, bytes) else name.encode() for name in self.blocks]
        text = self.between.join(names) + self.between
        names_at = 64 + 48 * len(names)
        start = position = align_up(names_at + len(text), 64)
        step = self.header["alignment"] or 1
        entries, data, name_at = [], bytearray(), 0
        for name, raw_name in zip(self.blocks, names, strict=True):
            raw, stored, flags = _stored(self.blocks[name])
            entry = {
                "hash": self.hash(raw_name),
                "name_at": name_at,
                "name_bytes": len(raw_name),
                "flags": flags,
                "offset": position,
                "disk": len(stored),
                "raw": len(raw),
                "crc": crc32c(raw),
                "content": 0,
            }
            if self.entry is not None:
                self.entry(str(name), entry)
            entries.append(entry)
            name_at += len(raw_name) + len(self.between)
            data += stored
            end = align_up(position + len(stored), step)
            data += bytes(end - position - len(stored))
            position = end
        rows = b"".join(struct.pack("<QIHHQQQIHH", *each.values(), 0) for each in self.order(entries))
        data += self.tail
        header = self.header
        head = struct.pack(
            "<4sBBHBBHIQQQQ",
            b"SHRD",
            header["version"],
            header["role"],
            0xA2,
            header["alignment"],
            header["default"],
            header["entry_size"],
            len(names),
            names_at,
            start,
            header["schema_offset"],
            start + len(data),
        )
        body = (rows + text).ljust(start - 64, b"\0")
        whole = head + bytes(16) + body
        if self.is_marked:
            crc = table_crc32c(memoryview(whole), start)
            whole = head + b"WDC1" + struct.pack("<I", crc) + bytes(8) + body
        return whole + bytes(data)


def _stored(block: Any) -> tuple[bytes, bytes, int]:
    """Raw bytes, stored bytes and flags of a block given as bytes, as JSON, or as all three."""
    if isinstance(block, tuple):
        return block
    raw = json.dumps(block).encode() if isinstance(block, dict | list) else bytes(block)
    return raw, raw, 0


def base_blocks() -> dict[str, Any]:
    """A small episode that is right."""
    return {
        "meta/wshard": {"format": "W-SHARD", "version": 1},
        "meta/episode": {"episode_id": "e", "env_id": "E", "length_T": STEPS},
        "meta/channels": {
            "channels": [{"id": "x", "dtype": "f32", "shape": [2], "signal_block": "signal/x"}]
        },
        "signal/x": np.arange(2 * STEPS, dtype=np.float32).tobytes(),
        "reward": np.arange(STEPS, dtype=np.float32).tobytes(),
        "done": bytes([0, 0, 0, 1]),
    }


def with_blocks(**changes: Any) -> File:
    """The small episode with blocks changed; `None` takes one away. `__` in a name stands for `/`."""
    blocks = base_blocks() | {name.replace("__", "/"): value for name, value in changes.items()}
    return File({name: value for name, value in blocks.items() if value is not None})


def episode_meta(**changes: Any) -> File:
    meta = {"episode_id": "e", "env_id": "E", "length_T": STEPS} | changes
    return with_blocks(meta__episode={key: value for key, value in meta.items() if value is not ...})


def channels(*listed: Any, **blocks: Any) -> File:
    return with_blocks(meta__channels={"channels": list(listed)}, **blocks)


def foreign(file: File) -> File:
    """Without our table checksum, as other programs write."""
    file.is_marked = False
    return file


def numbers(dtype: Any, *shape: int) -> bytes:
    return np.arange(int(np.prod(shape))).astype(dtype).reshape(shape).tobytes()


def many(raw: bytes, step: int) -> tuple[bytes, bytes, int]:
    return raw, b"".join(encode_seekable([raw[at : at + step] for at in range(0, len(raw), step)])), 0x000B


X = {"id": "x", "dtype": "f32", "shape": [2], "signal_block": "signal/x"}
WAVE = np.repeat(np.arange(3000, dtype=np.float32), 16).reshape(3000, 16).tobytes()
ENDS = np.array([2, 2, 5, 9], np.int64)
WORDS = {
    "meta__channels": {
        "channels": [
            {
                "id": "w",
                "dtype": "u8",
                "shape": [],
                "signal_block": "signal/w",
                "encoding": "text",
                "ends": "aux/ends/signal/w",
            },
        ]
    },
    "signal__x": None,
    "signal__w": b"hiyouthey",
    "aux__ends__signal__w": ENDS.tobytes(),
}
VALUES = {
    **WORDS,
    "meta__channels": {
        "channels": [
            {
                "id": "w",
                "dtype": "u8",
                "shape": [],
                "signal_block": "signal/w",
                "encoding": "json",
                "ends": "aux/ends/signal/w",
            },
        ]
    },
    "signal__w": b'12{}"a"nul',
    "aux__ends__signal__w": np.array([2, 4, 7, 10], np.int64).tobytes(),
}


def large(how: tuple[bytes, bytes, int] | bytes) -> File:
    """An episode of 3000 steps whose one channel is stored like this."""
    return with_blocks(
        meta__episode={"episode_id": "e", "length_T": 3000},
        meta__channels={"channels": [{**X, "shape": [16]}]},
        signal__x=how,
        reward=None,
        done=None,
    )


def seek_table(block: bytes) -> bytes:
    """The seek table a block ends with."""
    (count,) = struct.unpack("<I", block[-9:-5])
    return block[-(8 + 8 * count + 9) :]


def with_table_ahead(how: tuple[bytes, bytes, int], table: bytes) -> File:
    """The same, with a seek table before the data."""
    file = large(how)
    rows = file.blocks.pop("signal/x")
    file.blocks |= {"aux/seek/signal/x": table, "signal/x": rows}
    return file


def zstd_without_size(raw: bytes, **options: Any) -> bytes:
    compressor = zstandard.ZstdCompressor(level=3, write_content_size=False, **options).compressobj()
    return compressor.compress(raw) + compressor.flush()


def accepted() -> Iterable[tuple[str, File]]:
    """What SPEC.md says that readers accept."""
    yield "base", File()
    yield "foreign", foreign(File())
    yield "version_string", with_blocks(meta__wshard={"wshard_version": "1.0"})
    yield "no_meta_wshard", with_blocks(meta__wshard=None)
    yield "length_t", episode_meta(length_T=..., length_t=STEPS)
    yield "length_of_done", episode_meta(length_T=...)
    yield "id_key", episode_meta(episode_id=..., id="other")
    yield "no_ids", episode_meta(episode_id=..., env_id=...)
    yield (
        "more_keys",
        episode_meta(seed=2**63, name="Ω", metadata={"a": [1, 2.5, None, True], "β": {"__proto__": 1}}),
    )
    yield "timebase_string", episode_meta(timebase="ticks")
    yield "timebase_us", episode_meta(timebase="timestamps_us")
    yield "timebase_hz", episode_meta(timebase={"type": "ticks", "tick_hz": 12.5, "dt_ns": 1})
    yield "timebase_dt_cut", episode_meta(timebase={"dt_ns": 33333333})
    yield "timebase_dt_odd", episode_meta(timebase={"tick_hz": 0, "dt_ns": 12345678})
    yield "timebase_elsewhere", with_blocks(meta__wshard={"timebase": {"type": "ticks", "dt_ns": 16666667}})
    yield (
        "timebase_both",
        File(
            {
                **base_blocks(),
                "meta/wshard": {"timebase": "timestamps_ns"},
                "meta/episode": {"length_T": STEPS, "timebase": {"tick_hz": 5}},
                "time/timestamps_ns": (np.arange(STEPS) * 7).astype(np.int64).tobytes(),
            }
        ),
    )
    yield "range_last", episode_meta(chunk_index=1, total_chunks=3, timestep_range=[4, 7])
    yield "range_end", episode_meta(chunk_index=1, timestep_range=[4, 8])
    yield "range_none", episode_meta(chunk_index=0, timestep_range=[0, 0])
    yield (
        "channels_map",
        with_blocks(meta__channels={"channels": {"signal/x": {"dtype": "f32", "shape": [2]}}}),
    )
    yield "no_signal_block", channels({"id": "x", "dtype": "f32", "shape": [2]})
    yield "no_dtype", channels({"id": "x", "shape": [2]})
    yield "said_more", channels({**X, "unit": "rad", "names": ["a", "b"], "encoding": "plain"})
    yield (
        "action_as_signal",
        channels(
            X,
            {"id": "a", "dtype": "i16", "shape": [], "signal_block": "signal/a"},
            action__a=numbers("<i2", STEPS),
        ),
    )
    yield "action_and_signal", channels(X, action__x=numbers("<f4", STEPS, 2))
    yield "action_unlisted", with_blocks(action__a=numbers("<f4", STEPS, 3))
    yield "action_scalar", with_blocks(action__a=numbers("<f4", STEPS))
    yield "reward_f64", with_blocks(reward=np.linspace(0, 1, STEPS).tobytes())
    yield "reward_f16", with_blocks(reward=np.linspace(0, 1, STEPS).astype(np.float16).tobytes())
    yield "reward_u8", with_blocks(reward=(np.arange(STEPS) % 2).astype(np.uint8).tobytes())
    yield "reward_i8", with_blocks(reward=(np.arange(STEPS) - 2).astype(np.int8).tobytes())
    yield "reward_i64", with_blocks(reward=numbers("<i8", STEPS))
    yield "done_f32", with_blocks(done=np.array([0, 0, 0, 1], np.float32).tobytes())
    yield "done_u8_odd", with_blocks(done=bytes([0, 2, 255, 1]), truncated=bytes([7, 0, 0, 1]))
    yield "done_f32_odd", with_blocks(done=np.array([0, 0.5, -3, np.nan], np.float32).tobytes())
    yield "done_i32", with_blocks(done=np.array([0, 0, 0, 1], np.int32).tobytes())
    yield "done_zeros", with_blocks(done=bytes(8 * STEPS))
    yield "times_that_are_not_there", episode_meta(timebase={"type": "timestamps_ns", "dt_ns": 20_000_000})
    yield "no_flags", with_blocks(reward=None, done=None)
    yield "empty_flags", with_blocks(reward=b"", done=b"")
    yield "truncated_flag", with_blocks(truncated=bytes([0, 0, 1, 0]))
    yield "absent_flags", with_blocks(meta__wshard={"absent": ["reward", "done"]})
    yield (
        "exact_flags",
        with_blocks(
            meta__wshard={
                "exact": {
                    "reward": {"dtype": "f64", "about": {"unit": "m"}},
                    "done": {"dtype": "bool"},
                    "more": {},
                }
            },
            aux__reward=np.linspace(0, 1, STEPS).tobytes(),
        ),
    )
    yield "ticks", with_blocks(time__ticks=numbers("<i4", STEPS))
    yield (
        "lanes_unlisted",
        with_blocks(
            omen__x__m=numbers("<f4", STEPS, 2),
            uncert__x__m__std=numbers("<f4", STEPS, 2),
            residual__x__sign2nddiff=b"\5\3",
            omen__latent_action__g=numbers("<f4", STEPS, 5),
            omen__latent_action_codebook__g=numbers("<i4", STEPS),
        ),
    )
    yield (
        "lanes_listed",
        with_blocks(
            meta__wshard={"lanes": [{"block": "omen/x/m", "dtype": "i8", "shape": [3], "about": {"k": 1}}]},
            omen__x__m=numbers("i1", STEPS, 3),
        ),
    )
    yield (
        "blocks",
        with_blocks(
            notes=b"mine", aux__thing=b"\0\1", omen__unknown=b"odd", meta__models={"models": [{"id": "m"}]}
        ),
    )
    yield (
        "no_steps",
        File(
            {
                "meta/episode": {"length_T": 0},
                "meta/channels": {"channels": [X, {"id": "w", "dtype": "u8", "shape": [0, 3]}]},
            }
        ),
    )
    yield "empty_rows", channels(X, {"id": "w", "dtype": "u8", "shape": [0, 3]}, signal__w=b"")
    yield (
        "clock",
        channels(
            X,
            {"id": "c", "dtype": "f64", "shape": [], "clock": "time/signal/c/timestamps_ns"},
            signal__c=numbers("<f8", 3),
            time__signal__c__timestamps_ns=np.array([5, 6, 9], np.int64).tobytes(),
        ),
    )
    yield (
        "times_fall",
        channels(
            X,
            {"id": "c", "dtype": "f64", "shape": [], "clock": "time/signal/c/timestamps_ns"},
            signal__c=numbers("<f8", 3),
            time__signal__c__timestamps_ns=np.array([9, 9, 5], np.int64).tobytes(),
            time__timestamps_ns=np.array([3, 3, -8, 2**63 - 1], np.int64).tobytes(),
        ),
    )
    yield "text", with_blocks(**WORDS)
    as_text = {"dtype": "u8", "shape": [], "encoding": "text", "ends": "aux/ends/x"}
    yield (
        "numbers_listed_as_text",
        with_blocks(
            meta__wshard={
                "format": "W-SHARD",
                "version": 1,
                "lanes": [{"block": name, **as_text} for name in ("reward", "done", "time/timestamps_ns")],
            },
            time__timestamps_ns=np.arange(STEPS, dtype=np.int64).tobytes(),
            aux__ends__x=np.array([8, 16, 24, 32], np.int64).tobytes(),
        ),
    )
    yield "json", with_blocks(**{**VALUES, "signal__w": b'12{}"a"777'})
    yield (
        "odd_numbers",
        channels(
            *(
                {"id": name, "dtype": name, "shape": []}
                for name in ("f64", "f32", "f16", "bf16", "i64", "u64")
            ),
            signal__x=None,
            signal__f64=np.array([np.nan, np.inf, -np.inf, 5e-324]).tobytes(),
            signal__f32=np.array([np.nan, -np.inf, 1e-45, 0.1], np.float32).tobytes(),
            signal__f16=np.array([np.nan, np.inf, 6e-8, -65504], np.float16).tobytes(),
            signal__bf16=np.array([np.nan, np.inf, 1e-40, -3.14], ml_dtypes.bfloat16).tobytes(),
            signal__i64=np.array([-(2**63), 2**63 - 1, 2**53 + 1, 0], np.int64).tobytes(),
            signal__u64=np.array([2**64 - 1, 2**53 + 1, 1, 0], np.uint64).tobytes(),
        ),
    )
    for name in ("zstd", "lz4"):
        flags = layout.ENTRY_FLAGS[name]
        yield name, large((WAVE, encode(name, WAVE), flags))
        file = foreign(large((WAVE, encode(name, WAVE), 1)))
        file.header["default"] = 1 if name == "zstd" else 2
        file.blocks["done"] = (bytes(3000), bytes(3000), 1)
        yield f"default_{name}", file
    yield "zstd_checksum", large((WAVE, zstandard.ZstdCompressor(write_checksum=True).compress(WAVE), 3))
    yield "zstd_no_size", large((WAVE, zstd_without_size(WAVE), 3))
    yield (
        "zstd_two_frames",
        large(
            (WAVE, zstd_without_size(WAVE[:100000], write_checksum=True) + encode("zstd", WAVE[100000:]), 3)
        ),
    )
    yield (
        "zstd_skippable",
        large(
            (WAVE, encode("zstd", WAVE[:64]) + b"\x50\x2a\x4d\x18\3\0\0\0abc" + encode("zstd", WAVE[64:]), 3)
        ),
    )
    yield "zstd_19", large((WAVE, encode("zstd", WAVE, 19), 3))
    noise = np.random.default_rng(0).integers(0, 16, len(WAVE) // 4).astype(np.uint8)
    mixed = np.concatenate([noise, np.zeros(len(WAVE) - len(noise), np.uint8)]).tobytes()
    yield "zstd_entropy", large((mixed, encode("zstd", mixed, 7), 3))
    yield "lz4_hc", large((WAVE, encode("lz4", WAVE, 9), 5))
    yield "seekable", large(many(WAVE, 64 * 640))
    ahead = many(WAVE, 64 * 640)
    yield "seekable_ahead", with_table_ahead(ahead, seek_table(ahead[1]))
    yield "seekable_ahead_stale", with_table_ahead(ahead, seek_table(many(WAVE, 64 * 64)[1]))
    yield "seekable_ahead_short", with_table_ahead(ahead, b"short")
    yield (
        "meta_compressed",
        with_blocks(
            meta__wshard=_zstd({"lanes": [], "pad": "x" * 200}),
            signal__x=_zstd(numbers("<f4", STEPS, 2), force=True),
        ),
    )
    for alignment in (0, 16, 32):
        yield f"alignment_{alignment}", foreign(File(alignment=alignment))
    file = foreign(File())
    file.hash = fnv1a64
    yield "fnv_hashes", file
    file = foreign(File())
    file.between = b"\0"
    yield "nul_between_names", file
    file = foreign(File())
    file.order = lambda entries: entries[::-1]
    yield "table_in_another_order", file
    file = foreign(File(schema_offset=4096))
    file.tail = b'{"schema": 1}' + bytes(100)
    yield "more_behind", file
    yield (
        "unicode",
        channels(X, {"id": "关节/α β", "dtype": "u8", "shape": []}, **{"signal__关节__α β": bytes(STEPS)}),
    )
    yield "flags_ignored", File(default=7)


def _zstd(value: Any, *, force: bool = False) -> tuple[bytes, bytes, int]:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    stored = encode("zstd", raw)
    assert force or len(stored) < len(raw)
    return raw, stored, 3


def patched(at: int, form: str, *values: Any, marked: bool = False) -> Callable[[], bytes]:
    """The small episode with some of its header bytes changed."""

    def build() -> bytes:
        file = File()
        file.is_marked = marked
        data = bytearray(file.build())
        struct.pack_into(form, data, at, *values)
        return bytes(data)

    return build


def entry(name: str, *, marked: bool = False, **changes: Any) -> Callable[[], bytes]:
    """The small episode with fields of one table entry changed, and a right table checksum if marked."""

    def build() -> bytes:
        file = File()
        file.is_marked = marked

        def change(found: str, fields: dict[str, Any]) -> None:
            if found == name:
                fields.update(
                    {key: value(fields[key]) if callable(value) else value for key, value in changes.items()}
                )

        file.entry = change
        return file.build()

    return build


def refused() -> Iterable[tuple[str, Callable[[], bytes]]]:
    """What SPEC.md says that readers refuse."""
    yield from _refused_tables()
    yield from _refused_blocks()
    yield from _refused_metadata()
    yield from _refused_texts()
    yield from _refused_recordings()


def _refused_tables() -> Iterable[tuple[str, Callable[[], bytes]]]:
    base = File().build()
    for name, size in {
        "empty": 0,
        "three_bytes": 3,
        "header_cut": 40,
        "table_cut": 200,
        "block_cut": len(base) - 70,
    }.items():
        yield name, lambda size=size: base[:size]
    yield "longer", lambda: base + b"\0"
    yield "magic", lambda: b"NOPE" + base[4:]
    yield "version", patched(4, "<B", 3)
    yield "entry_size", patched(10, "<H", 40)
    yield "alignment", patched(8, "<B", 8)
    yield "too_many_entries", patched(12, "<I", 10_000_001)
    yield "names_elsewhere", patched(16, "<Q", 65)
    yield "data_before_names", patched(24, "<Q", 100)
    yield "too_many_names", patched(24, "<Q", 1 << 30)
    yield "data_behind_end", patched(24, "<Q", 1 << 20)
    yield "entry_count", patched(12, "<I", 5, marked=True)
    yield "total_size", patched(40, "<Q", len(base) + 64)
    yield "role", patched(5, "<B", 3)
    yield "mark", patched(48, "<4s", b"WDC2")
    yield "mark_gone", patched(48, "<I", 0, marked=True)
    yield "table_checksum", patched(70, "<B", 99, marked=True)
    yield "reserved", patched(60, "<B", 1, marked=True)
    for marked in (False, True):
        kind = "marked" if marked else "foreign"
        yield f"flags_{kind}", entry("signal/x", marked=marked, flags=0x0007)
        yield f"flags_seekable_alone_{kind}", entry("signal/x", marked=marked, flags=0x0008)
        yield f"raw_sizes_differ_{kind}", entry("signal/x", marked=marked, raw=31)
        yield f"too_large_{kind}", entry("signal/x", marked=marked, raw=(64 << 30) + 1, flags=3)
        yield f"overlap_{kind}", entry("reward", marked=marked, offset=lambda at: at - 64)
        yield f"over_table_{kind}", entry("signal/x", marked=marked, offset=64)
        yield f"past_the_end_{kind}", entry("done", marked=marked, offset=lambda at: at + 128)
        yield f"far_away_{kind}", entry("done", marked=marked, offset=(1 << 64) - 2)
        yield f"name_outside_{kind}", entry("done", marked=marked, name_at=10_000)
        yield f"name_empty_{kind}", entry("done", marked=marked, name_bytes=0)
        yield f"name_long_{kind}", entry("done", marked=marked, name_bytes=60_000)
    yield "name_hash", entry("done", hash=12345)
    yield "block_checksum", entry("signal/x", marked=True, crc=7)
    yield "meta_checksum", entry("meta/episode", marked=True, crc=7)

    def odd_name(name: bytes) -> Callable[[], bytes]:
        return File({**base_blocks(), name: b"1"}).build  # type: ignore[dict-item]

    yield "name_not_utf8", odd_name(b"no\xff")
    yield "name_with_nul", odd_name(b"no\0pe")
    yield "name_twice", odd_name(b"done")


def expanding(flags: int) -> Callable[[], bytes]:
    """A file of 33 KB whose block is one zstd frame of run-length blocks: a little more than 1 GiB of zeros."""
    rows, row_bytes = (layout.MAX_EXPANDED_BYTES >> 17) + 1, 128 << 10
    is_seekable = flags == FLAGS_SEEKABLE
    blocks = [row_bytes << 3 | 1 << 1] * (rows - 1) + [row_bytes << 3 | 1 << 1 | 1]
    frame = b"".join(
        [
            b"\x28\xb5\x2f\xfd",
            bytes(
                [0xE4 if is_seekable else 0xE0]
            ),  # one segment, 8 bytes of content size; 4: a checksum follows
            (rows * row_bytes).to_bytes(8, "little"),
            *(block.to_bytes(3, "little") + b"\0" for block in blocks),
            bytes(4) if is_seekable else b"",
        ]
    )
    table = pack_seek_table([(len(frame), rows * row_bytes)]) if is_seekable else b""
    file = with_blocks(
        meta__episode={"episode_id": "e", "length_T": rows},
        meta__channels={"channels": [{**X, "dtype": "u8", "shape": [row_bytes]}]},
        signal__x=(b"", frame + table, flags),
        reward=None,
        done=None,
    )

    def claim(name: str, entry: dict[str, Any]) -> None:
        if name == "signal/x":
            entry["raw"] = rows * row_bytes

    file.entry = claim
    return file.build


def _refused_blocks() -> Iterable[tuple[str, Callable[[], bytes]]]:
    zstd, lz4 = encode("zstd", WAVE), encode("lz4", WAVE)
    seekable = many(WAVE, 64 * 640)[1]

    def stored(data: bytes, flags: int, raw: bytes = WAVE) -> Callable[[], bytes]:
        return large((raw, data, flags)).build

    def flipped(data: bytes, at: int) -> bytes:
        return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]

    yield "zstd_no_frame", stored(b"xxxx" + zstd[4:], 3)
    yield "zstd_cut", stored(zstd[:-9], 3)
    yield "zstd_behind", stored(zstd + b"\0\0\0\0\0", 3)
    yield "zstd_reserved_bit", stored(zstd[:4] + bytes([zstd[4] | 8]) + zstd[5:], 3)
    yield "zstd_announces_more", stored(zstd, 3, WAVE[:-64])
    yield "zstd_holds_less", stored(encode("zstd", WAVE[:-64]), 3)
    yield "zstd_no_size_less", stored(zstd_without_size(WAVE[:-64]), 3)
    yield "zstd_no_size_more", stored(zstd_without_size(WAVE + WAVE), 3)
    yield (
        "zstd_frame_checksum",
        stored(flipped(zstandard.ZstdCompressor(write_checksum=True).compress(WAVE), -2), 3),
    )
    yield "zstd_bomb", stored(b"\0" * 4, 3)
    yield "zstd_expands", expanding(layout.ENTRY_FLAGS["zstd"])
    yield "seekable_expands", expanding(FLAGS_SEEKABLE)
    yield "zstd_empty", stored(b"", 3)
    yield "zstd_wrong_content", stored(encode("zstd", bytes(len(WAVE))), 3)
    yield "lz4_cut", stored(lz4[:-1], 5)
    yield "lz4_bomb", stored(lz4[:100], 5)
    yield "lz4_far_match", stored(b"\x1fa\xff\xff" + lz4[4:], 5)
    yield "lz4_holds_less", stored(encode("lz4", WAVE[:-64]), 5)
    yield "lz4_wrong_content", stored(encode("lz4", bytes(len(WAVE))), 5)
    unsummed = zstandard.ZstdCompressor(write_checksum=False).compress(WAVE)
    yield (
        "seekable_unsummed",
        stored(unsummed + pack_seek_table([(len(unsummed), len(WAVE))]), 0x0B),
    )
    yield "seekable_frame", stored(flipped(seekable, 60), 0x0B)
    yield "seekable_footer", stored(flipped(seekable, -1), 0x0B)
    yield "seekable_descriptor", stored(flipped(seekable, -5), 0x0B)
    yield "seekable_count", stored(seekable[:-9] + struct.pack("<I", 1 << 28) + seekable[-5:], 0x0B)
    yield "seekable_count_off", stored(seekable[:-9] + struct.pack("<I", 4) + seekable[-5:], 0x0B)
    yield "seekable_sizes", stored(flipped(seekable, -13), 0x0B)
    yield "seekable_tiny", stored(b"12345", 0x0B)
    yield "seekable_single", stored(zstd, 0x0B)


def _refused_metadata() -> Iterable[tuple[str, Callable[[], bytes]]]:
    yield "no_episode", with_blocks(meta__episode=None).build
    yield "no_channels", with_blocks(meta__channels=None).build
    for name, text in {
        "not_json": b"{",
        "list": b"[]",
        "twice": b'{"length_T":4,"length_T":4}',
        "nan": b'{"length_T":NaN}',
        "behind": b"{} x",
        "not_utf8": b'{"length_T":4,"id":"\xff"}',
        "single_quotes": b"{'length_T':4}",
        "control": b'{"length_T":4,"id":"\n"}',
        "leading_zero": b'{"length_T":04}',
        "comma": b'{"length_T":4,}',
        "escape": b'{"length_T":4,"id":"\\x"}',
        "plus": b'{"length_T":+4}',
    }.items():
        yield f"json_{name}", with_blocks(meta__episode=text).build
    deep = b'{"length_T":4,"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    yield "json_deep", with_blocks(meta__episode=_zstd(deep)).build
    for name, change in {
        "length_text": {"length_T": "4"},
        "length_float": {"length_T": 4.0},
        "length_negative": {"length_T": -4},
        "length_true": {"length_T": True},
        "length_huge": {"length_T": 1 << 48},
        "length_null": {"length_T": None},
        "length_other": {"length_T": 5},
        "id_number": {"episode_id": 5},
        "timebase_type": {"timebase": {"type": "frames"}},
        "timebase_null": {"timebase": {"type": None}},
        "tick_text": {"timebase": {"tick_hz": "30"}},
        "tick_negative": {"timebase": {"tick_hz": -1}},
        "tick_true": {"timebase": {"tick_hz": True}},
        "dt_list": {"timebase": {"dt_ns": [1]}},
        "range_wrong": {"timestep_range": [0, 9]},
        "range_one": {"timestep_range": [3]},
        "chunk_text": {"chunk_index": "0"},
        "total_float": {"chunk_index": 0, "total_chunks": 1.5},
        "metadata_list": {"metadata": []},
    }.items():
        yield name, episode_meta(**change).build
    for name, said in {
        "times_many": {"length_T": 1 << 47},
        "times_late": {"length_T": 10, "timebase": {"tick_hz": 1e-9}},
    }.items():  # nothing in the file backs the length
        yield name, File({"meta/episode": said, "meta/channels": {"channels": []}}).build
    yield "no_length", File({k: v for k, v in episode_meta(length_T=...).blocks.items() if k != "done"}).build
    for name, listed in {
        "twice": [X, X],
        "dtype": [{**X, "dtype": "float32"}],
        "dtype_null": [{**X, "dtype": None}],
        "rank": [{**X, "shape": [1] * 17}],
        "row_large": [{**X, "shape": [1 << 40, 1 << 40]}],
        "side_negative": [{**X, "shape": [-2]}],
        "side_float": [{**X, "shape": [2.0]}],
        "shape_number": [{**X, "shape": 2}],
        "shape_other": [{**X, "shape": [3]}],
        "no_id": [{"dtype": "f32"}],
        "lane": [{**X, "signal_block": "other/x"}],
        "clock_missing": [{**X, "clock": "time/x"}],
        "clock_number": [{**X, "clock": 5}],
        "missing_block": [X, {"id": "y"}],
        "number": [5],
    }.items():
        yield f"channel_{name}", channels(*listed).build
    yield "channels_text", with_blocks(meta__channels={"channels": "x"}).build
    for name, meta in {
        "lanes_object": {"lanes": {}},
        "lane_dtype": {"lanes": [{"block": "omen/x", "dtype": "f33"}]},
        "exact_dtype": {"exact": {"reward": {"dtype": ""}}},
        "exact_list": {"exact": []},
        "absent_text": {"absent": "reward"},
        "exact_missing": {"exact": {"reward": {"dtype": "f64"}}},
    }.items():
        yield name, with_blocks(meta__wshard=meta).build
    yield "models_object", with_blocks(meta__models={"models": {}}).build
    yield (
        "lane_size",
        with_blocks(meta__wshard={"lanes": [{"block": "omen/x", "dtype": "f32"}]}, omen__x=bytes(7)).build,
    )
    yield "reward_size", with_blocks(reward=bytes(7)).build
    yield "times_size", with_blocks(time__timestamps_ns=bytes(8)).build


def _refused_texts() -> Iterable[tuple[str, Callable[[], bytes]]]:
    for name, change in {
        "ends_fall": {"aux__ends__signal__w": np.array([2, 1, 5, 9], np.int64).tobytes()},
        "ends_short": {"aux__ends__signal__w": np.array([2, 2, 5, 8], np.int64).tobytes()},
        "ends_far": {"aux__ends__signal__w": np.array([2, 2, 5, 10], np.int64).tobytes()},
        "ends_negative": {"aux__ends__signal__w": np.array([-1, 2, 5, 9], np.int64).tobytes()},
        "ends_huge": {"aux__ends__signal__w": np.array([2, 2, 2**62, 9], np.int64).tobytes()},
        "ends_missing": {"aux__ends__signal__w": None},
        "ends_few": {"aux__ends__signal__w": ENDS[:3].tobytes()},
        "text_not_utf8": {"signal__w": b"hiyou\xff\xfeey"},
        "text_cut_letter": {"signal__w": "hä".encode() + b"outhey"},
    }.items():
        yield name, with_blocks(**{**WORDS, **change}).build
    yield "json_value", with_blocks(**VALUES).build
    for name, change in {
        "encoding": {"encoding": "html"},
        "dtype": {"dtype": "i8"},
        "shape": {"shape": [1]},
    }.items():
        (listed,) = WORDS["meta__channels"]["channels"]  # type: ignore[index]
        yield (
            f"text_{name}",
            with_blocks(**{**WORDS, "meta__channels": {"channels": [{**listed, **change}]}}).build,
        )


def _refused_recordings() -> Iterable[tuple[str, Callable[[], bytes]]]:
    directory = {"version": 2, "id": "r", "meta": {}, "static": {}, "signals": {}}
    rows = {
        "kind": "vector",
        "dtype": "f32",
        "shape": [2],
        "block": "signal/x",
        "count": STEPS,
        "times": "aux/clock/x",
    }
    clock = (np.arange(STEPS) * 5).astype(np.int64).tobytes()
    for name, change, stamps in [
        ("version", {"version": 3}, clock),
        ("signals", {"signals": []}, clock),
        ("no_static", {"static": None}, clock),
        ("count", {"signals": {"x": {**rows, "count": 5}}}, clock),
        ("kind", {"signals": {"x": {**rows, "kind": "odd"}}}, clock),
        ("dtype", {"signals": {"x": {**rows, "dtype": "f33"}}}, clock),
        ("role", {"signals": {"x": {**rows, "role": "odd"}}}, clock),
        ("shape", {"signals": {"x": {**rows, "shape": [0]}}}, clock),
        ("block_gone", {"signals": {"x": {**rows, "block": "gone"}}}, clock),
        ("times_fall", {"signals": {"x": rows}}, clock[::-1]),
        ("times_few", {"signals": {"x": rows}}, clock[:-8]),
        ("signal_text", {"signals": {"x": "channel"}}, clock),
    ]:
        yield (
            f"packed_{name}",
            with_blocks(meta__directory={**directory, **change}, aux__clock__x=stamps).build,
        )
    ragged = {**rows, "kind": "ragged", "offsets": "aux/offsets/x"}
    offsets = np.arange(STEPS + 1, dtype=np.int64)
    for name, change, numbers in [
        ("gone", {"offsets": "gone"}, offsets),
        ("unstated", {"offsets": None}, offsets),
        ("fall", {}, np.where(offsets == 2, 9, offsets)),
        ("few", {}, offsets[:-1]),
        ("beyond", {}, offsets + (offsets == STEPS)),
        ("late", {}, offsets + (offsets == 0)),
    ]:
        about = {**directory, "signals": {"x": {**ragged, **change}}}
        blocks = {"aux__clock__x": clock, "aux__offsets__x": numbers.astype(np.int64).tobytes()}
        yield f"packed_offsets_{name}", with_blocks(meta__directory=about, **blocks).build


def every_residual() -> wd.WShardEpisode:
    """Sign bits, as many bytes as there are steps, and residuals that only have their name."""
    steps = 16
    episode = wd.WShardEpisode(id="residuals", length=steps)
    wave = np.sin(np.arange(steps * 8, dtype=np.float32).reshape(steps, 8) ** 2)
    bits = np.frombuffer(wd.pack_residual(wd.sign2nddiff(wave)), np.uint8)
    episode.residuals["x/sign2nddiff"] = episode.residuals["x/sign2nddiff/m"] = bits
    episode.residuals["y/sign2nddiff"] = wave[:, 0]
    episode.residuals["y/error/sign2nddiff"] = wave
    episode.residuals["z/sign2nddiff"] = wd.sign2nddiff(wave)
    episode.residuals["z/m/sign2nddiff/0"] = np.arange(steps * 8, dtype=np.uint8).reshape(steps, 8)
    episode.residuals["sign2nddiff/z"] = np.arange(steps, dtype=np.uint8)
    return episode


def chunk_lists(folder: Path) -> None:
    """Episodes in chunks, with every kind of channel, and lists that are wrong."""
    wd.chunk_episode(every_lane(), folder / "lanes", 4, compression="zstd", overwrite=True)
    wd.chunk_episode(every_word(), folder / "words", 3, overwrite=True)
    wd.chunk_episode(every_residual(), folder / "residuals", 7, overwrite=True)
    good = [
        {
            "chunk_index": index,
            "uri": f"chunk_{index}.wshard",
            "sha256": "",
            "timestep_range": [4 * index, 4 * index + 3],
            "length_T": 4,
        }
        for index in range(2)
    ]
    wrong = folder / "wrong"
    wrong.mkdir(exist_ok=True)
    for index, each in enumerate(good):
        data = episode_meta(chunk_index=index, total_chunks=2).build()
        (wrong / str(each["uri"])).write_bytes(data)
        each["sha256"] = hashlib.sha256(data).hexdigest()
    other = channels({**X, "dtype": "i32"})
    (wrong / "other.wshard").write_bytes(other.build())
    other_sum = hashlib.sha256(other.build()).hexdigest()

    def listed(name: str, chunks: Any = None, *, role: int = 4, **changes: Any) -> None:
        meta = {
            "episode_id": "e",
            "env_id": "",
            "total_chunks": 2,
            "total_timesteps": 8,
            "chunks": good if chunks is None else chunks,
            **changes,
        }
        (wrong / f"{name}.wshard").write_bytes(File({"meta/manifest": meta}, role=role).build())

    def changed(**changes: Any) -> list[dict[str, Any]]:
        return [good[0], {**good[1], **changes}]

    listed("good")
    listed("reversed", good[::-1])
    listed("no_ranges", [{**each, "timestep_range": None} for each in good])
    listed("empty", [], total_timesteps=0)
    listed("gap", changed(timestep_range=[5, 8]))
    listed("index_twice", changed(chunk_index=0))
    listed("range_length", changed(timestep_range=[4, 8]))
    listed("length_wrong", changed(length_T=5, timestep_range=[4, 8]), total_timesteps=9)
    listed("total", total_timesteps=9)
    listed("sha_text", changed(sha256="x" * 64))
    listed("sha_other", changed(sha256="0" * 64))
    listed("missing", changed(uri="gone.wshard"))
    listed("outside", changed(uri="../x.wshard"))
    listed("drive", changed(uri="c:/x.wshard"))
    listed("backslash", changed(uri="..\\x.wshard"))
    listed("no_uri", changed(uri=""))
    listed("float", changed(timestep_range=[4.0, 7]))
    listed("chunks_object", {})
    listed("chunks_numbers", [5])
    listed("id_number", episode_id=5)
    listed("other_channels", changed(uri="other.wshard", sha256=other_sum))
    differences: dict[str, dict[str, Any]] = {
        "rate": {"timebase": {"type": "ticks", "tick_hz": 50}},
        "env_id": {"env_id": "Other-v0"},
        "episode_id": {"episode_id": "other"},
        "metadata": {"metadata": {"operator": "b"}},
        "episode_key": {"site": "b"},
    }
    for name, difference in differences.items():
        data = episode_meta(chunk_index=1, total_chunks=2, **difference).build()
        (wrong / f"chunk_other_{name}.wshard").write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        listed(f"other_{name}", changed(uri=f"chunk_other_{name}.wshard", sha256=sha256))
    (wrong / "no_list.wshard").write_bytes(File({"meta/other": {}}, role=4).build())


def constants() -> dict[str, Any]:
    """Every number of the format: what the other languages must have too."""
    names = [
        "VERSION",
        "TABLE_OFFSET",
        "ENTRY_BYTES",
        "ROLE_CHUNK_LIST",
        "ROLE_EPISODE",
        "HEADER_FLAGS",
        "ALIGNMENT",
        "MAX_ENTRIES",
        "MAX_STRING_TABLE_BYTES",
        "MAX_NAME_BYTES",
        "MAX_BLOCK_BYTES",
        "PIECES_FROM_BYTES",
        "MAX_EXPANDED_BYTES",
        "MAX_LARGE_RATIO",
        "PIECE_BYTES",
        "FRAME_BYTES",
        "MIN_COMPRESSED_BYTES",
    ]
    found: dict[str, Any] = {name: getattr(layout, name) for name in names}
    found["DTYPES"] = {name: dtype_named(name).itemsize for name in DTYPE_NAMES}
    found["MARK"], found["MAGIC"] = layout.MARK.decode(), layout.MAGIC.decode()
    return found


def write(folder: Path) -> None:
    """Write all files of the suite."""
    for kind, cases in (("good", ((name, file.build) for name, file in accepted())), ("bad", refused())):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for name, build in cases:
            (folder / kind / f"{name}.wshard").write_bytes(build())
    chunk_lists(folder / "chunks")


def expected(files: Path) -> dict[str, Any]:
    """What Python reads in every file of the suite and in the golden files, by path below `tests`."""
    own = sorted(files.rglob("*.wshard"))
    golden = sorted(
        path for name in ("wshard", "packed") for path in (TESTS / "golden" / name).rglob("*.wshard")
    )
    found = {f"conformance/files/{path.relative_to(files).as_posix()}": plain(describe(path)) for path in own}
    found |= {path.relative_to(TESTS).as_posix(): plain(describe(path)) for path in golden}
    return {"layout": constants(), "files": found}


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else TESTS / "conformance"
    write(root / "files")
    said = expected(root / "files")
    (root / "expected.json").write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")
    refusals = sum("error" in each for each in said["files"].values())
    print(f"wrote {len(said['files'])} files below {root}, {refusals} of them to be refused")


if __name__ == "__main__":
    main()
