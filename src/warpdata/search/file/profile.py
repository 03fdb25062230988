"""What a store is: metric, dtype and the layout of its rows. JSON in a record of the manifest."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import CorruptLayoutError, require_kind, require_word
from warpdata.formats.rvf import layout

METRICS = ("l2", "ip", "cosine")
INDEX_KINDS = ("hnsw", "ivf", "flat")
CODE_KINDS = ("scalar", "pq", "binary", "residual_pq")
WORTH_INDEXING = 20_000
"""From so many vectors on a graph is many times faster than comparing with all of them, and worth its cost."""
STORED_DTYPES = ("f32", "f16", "bf16", "i8", "u8", "i4", "binary")


def _require_numbers(*numbers: object) -> None:
    for number in numbers:
        require_kind("a size in a plan", number, int, "a whole number")


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """Which vector index a store has, or is to get."""

    kind: str = "hnsw"
    m: int = 16
    ef_construction: int = 200
    partitions: int = 0
    """0 chooses the square root of the number of vectors."""

    def __post_init__(self) -> None:
        require_word("the kind of an index", self.kind, INDEX_KINDS)
        _require_numbers(self.m, self.ef_construction, self.partitions)
        if not 2 <= self.m <= 256 or not 1 <= self.ef_construction <= 65_536 or self.partitions < 0:
            raise ValueError(
                "an index needs 2 <= m <= 256, 1 <= ef_construction <= 65536 and partitions >= 0"
            )


@dataclass(frozen=True, slots=True)
class CodePlan:
    """How vectors are quantised, and whether the full ones are kept."""

    kind: str
    keep_full: bool = True
    code_bytes: int | None = None

    def __post_init__(self) -> None:
        require_word("the kind of a quantisation", self.kind, CODE_KINDS)
        require_kind("keep_full", self.keep_full, bool, "True or False")
        _require_numbers(self.code_bytes or 0)

    def bytes_for(self, dim: int) -> int:
        """Bytes of a product code: as given, else one for four dimensions; for three if nothing else is kept."""
        wanted = -(-dim // (4 if self.keep_full else 3)) if self.code_bytes is None else self.code_bytes
        if not 1 <= wanted <= dim:
            raise ValueError(f"a code of {wanted} bytes for {dim} dimensions")
        return wanted


@dataclass(frozen=True, slots=True)
class Profile:
    """The part of the manifest that only a vector store understands."""

    metric: str = "l2"
    dtype: str = "f32"
    next_id: int = 0
    index: IndexPlan | None = None
    codes: CodePlan | None = None
    row_segments: tuple[int, ...] = ()
    """Segments whose rows the partitions cover, in the order of the index."""
    code_segments: tuple[int, ...] = ()
    """Segments that hold codes of the same rows."""
    probe_share: float = 0.0
    """The share of the rows that a probe of partitions must look at; measured when the index is built."""
    id_segment: int = 0
    """The segment with the block of each id of the row segments; 0 if there is none."""
    copies: int = 0
    """How many indexed rows equal an earlier one; the graph is then one of distinct vectors with copies below."""
    key: str = ""
    """The metadata field whose texts name the vectors, if one was declared."""
    graph_segments: tuple[int, ...] = ()
    """Segments whose rows were added to the graph later, behind those of the row segments."""
    graph_entry: tuple[int, ...] = ()
    """Node and level where walks begin, once rows were added to the graph."""
    efforts: tuple[tuple[float, ...], ...] = ()
    """Measured when the index was built: effort, and the recall near the data, between clusters and outside."""

    def to_json(self) -> bytes:
        """The record's bytes."""
        return dump_json({key: value for key, value in asdict(self).items() if value not in (None, (), "")})


def parse_profile(data: bytes | None, where: str = "") -> Profile:
    """The profile of a record; a file without one is an l2 store of f32."""
    if not data:
        return Profile()
    body = parse_json_object(data, max_bytes=1 << 24)
    try:
        return _checked(body)
    except (TypeError, ValueError) as error:
        raise CorruptLayoutError(
            f"the profile of the store is damaged ({error})", path=where or None
        ) from None


def _checked(body: dict[str, Any]) -> Profile:
    index, codes = body.get("index"), body.get("codes")
    numbers = {
        name: tuple(int(number) for number in body.get(name, ()))
        for name in ("row_segments", "code_segments", "graph_segments", "graph_entry")
    }
    profile = Profile(
        metric=str(body.get("metric", "l2")),
        dtype=str(body.get("dtype", "f32")),
        next_id=int(body.get("next_id", 0)),
        index=None if index is None else IndexPlan(**index),
        codes=None if codes is None else CodePlan(**codes),
        probe_share=float(body.get("probe_share", 0.0)),
        id_segment=int(body.get("id_segment", 0)),
        copies=int(body.get("copies", 0)),
        key=str(body.get("key", "")),
        efforts=tuple(tuple(float(number) for number in row) for row in body.get("efforts", ())),
        **numbers,
    )
    require_word("the metric", profile.metric, METRICS)
    require_word("the dtype", profile.dtype, layout.DTYPE_IDS)
    if profile.next_id < 0:
        raise ValueError(f"the next id is {profile.next_id}")
    if len(profile.code_segments) not in (0, len(profile.row_segments)):
        raise ValueError("some rows have codes and others have none")
    if len(profile.graph_entry) not in (0, 2) or any(len(row) != 4 for row in profile.efforts):
        raise ValueError("the index is described wrongly")
    return profile
