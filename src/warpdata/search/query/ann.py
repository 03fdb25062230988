"""Graphs, equal vectors in them, clusters and codebooks. The adapter of faiss."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.forks import run_in_child
from warpdata.errors import CorruptLayoutError, LimitExceededError, MissingExtraError
from warpdata.formats.rvf.graph import Adjacency
from warpdata.formats.rvf.quant import BinaryQuant, ProductQuant, Quantiser, ScalarQuant, widen
from warpdata.search.query.distance import WalkSpace

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MAX_M = 1024
"""More neighbours per node than any graph has; faiss takes memory for all of them."""

_BATCH_QUERIES = 4096
_ONE_SEARCH = 2
"""One walk from all entries together, in the words of faiss."""
_MAX_SPREAD = 1024
"""Up to this many clusters begin at vectors far apart; the choice takes longer for each."""
_SEED_SAMPLE = 16_384
_SEED_TRIALS = 4
_ADDING_EFFORT = 200
_PRODUCT_EFFORT = 4
"""Graphs of inner products are walked with so many times the effort: they hide more of their nodes."""
_HASHED_ROWS = 16_384
_LISTS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class GraphShape:
    """What a graph needs besides its neighbour lists."""

    m: int
    entry_point: int
    max_level: int


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError.for_extra("faiss", "index") from None
    if _CHILD_THREADS.library is None:
        _CHILD_THREADS.library = faiss
        run_in_child(_CHILD_THREADS.limit)
    return faiss


class _ChildThreads:
    """A forked child has none of the threads of faiss, and would wait for them: there one thread does the work."""

    library: Any = None

    def limit(self) -> None:
        self.library.omp_set_num_threads(1)


_CHILD_THREADS = _ChildThreads()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A graph that is built inside is always the same: of several threads, each would find what others did so far."""
    library = _faiss()
    threads = library.omp_get_max_threads()
    library.omp_set_num_threads(1)
    try:
        yield
    finally:
        library.omp_set_num_threads(threads)


def has_faiss() -> bool:
    """Whether graphs can be built and searched here."""
    return importlib.util.find_spec("faiss") is not None


class Graph:
    """An HNSW graph over prepared vectors, in memory; row i is node i."""

    def __init__(
        self,
        library: Any,
        index: Any,
        shape: GraphShape,
        vectors: Floats,
        space: WalkSpace,
        lent: tuple[Any, ...] = (),
    ) -> None:
        self._library = library
        self.space = space
        self.vectors = vectors
        self._lent = lent
        self._index = index
        self._hnsw = index.hnsw
        self._search_c = index.search_c
        self._from_entry = index.search_level_0
        self._pointer = library.swig_ptr
        self._params: dict[int, Any] = {}
        self.shape = shape
        self.count = int(index.ntotal)
        self.dim = int(index.d)
        self._entries: tuple[list[int], Floats, Floats, Floats] | None = None

    @classmethod
    def build(cls, vectors: Floats, space: WalkSpace, m: int, ef_construction: int) -> Graph:
        """A new graph of these vectors, which are in the space it walks."""
        library = _faiss()
        index = _empty(library, vectors.shape[1], space, m)
        index.hnsw.efConstruction = ef_construction
        index.add(vectors)
        return _finished(library, index, vectors, m, space)

    @classmethod
    def restore(cls, vectors: Floats, space: WalkSpace, adjacency: Adjacency, shape: GraphShape) -> Graph:
        """The graph of a file, which has a node for each vector, without building it again."""
        library = _faiss()
        if shape.m > _MAX_M:
            raise LimitExceededError(f"a graph with {shape.m} neighbours per node")
        index = _empty(library, vectors.shape[1], space, shape.m)
        levels, offsets, neighbors = _faiss_arrays(adjacency, shape.m)
        top = shape.max_level + 1
        if shape.entry_point >= len(levels) or levels[shape.entry_point] != top or levels.max() != top:
            raise CorruptLayoutError("the entry point of the graph is not on its top level")
        _fill(library, index, vectors, neighbors)
        index.ntotal = len(vectors)
        library.copy_array_to_vector(levels, index.hnsw.levels)
        library.copy_array_to_vector(offsets, index.hnsw.offsets)
        index.hnsw.entry_point, index.hnsw.max_level = shape.entry_point, shape.max_level
        return cls(library, index, shape, vectors, space, (neighbors,))

    def search(
        self, queries: Floats, k: int, ef: int, allowed: NDArray[np.uint8] | None = None
    ) -> tuple[Ints, Floats]:
        """The k nearest rows of each query and their distances; `allowed` is a bit per row. Missing ones are row -1."""
        queries, count = self.space.place(queries), len(queries)
        rows = np.empty((count, k), np.int64)
        scores = np.empty((count, k), np.float32)
        ef *= _PRODUCT_EFFORT if self.space.metric == "ip" else 1
        params = self._parameters(ef if ef > k else k, allowed)
        if count <= _BATCH_QUERIES:
            self._search_into(queries, k, scores, rows, params)
        else:
            for start in range(0, count, _BATCH_QUERIES):
                part = slice(start, start + _BATCH_QUERIES)
                self._search_into(queries[part], k, scores[part], rows[part], params)
        return rows, self.space.distances(scores)

    def _search_into(self, queries: Floats, k: int, scores: Floats, rows: Ints, params: Any) -> None:
        pointer, count = self._pointer, len(queries)
        if self._entries is not None:
            rows_at, moved, halves, centre = self._entries
            points = queries - centre
            if count > 1:
                at = (points @ moved.T - halves).argmax(axis=1)
                entry, apart = np.array(rows_at, np.int32)[at], moved[at] - points
                away = np.einsum("ij,ij->i", apart, apart)
                starts, out = (pointer(entry), pointer(away)), (pointer(scores), pointer(rows))
                self._from_entry(count, pointer(queries), k, *starts, *out, 1, _ONE_SEARCH, params)
                return
            # For a walk from given nodes faiss would wake all of its threads and wait for them.
            nearness = moved.dot(points[0])
            nearness -= halves
            self._hnsw.entry_point = rows_at[nearness.argmax()]
        self._search_c(count, pointer(queries), k, pointer(scores), pointer(rows), params)

    def enter_at(self, rows: Ints) -> None:
        """Begin walks at the nearest of these rows instead of descending the upper levels, where scores are distances.

        Where clusters are far apart, levels lead into the wrong one; a look at one row of each does not.
        """
        centre = self.vectors[rows].mean(axis=0)
        moved = self.vectors[rows] - centre
        halves = np.einsum("ij,ij->i", moved, moved) / np.float32(2)
        self._entries = (rows.tolist(), moved, halves, centre)
        self._hnsw.max_level = 0  # no walk comes down from above

    def extended(self, vectors: Floats) -> Graph:
        """A graph with these vectors behind its own; they are linked to the nodes that are there."""
        library = self._library
        index = _empty(library, self.dim, self.space, self.shape.m)
        library.downcast_index(index.storage).add(np.ascontiguousarray(self.vectors))
        index.ntotal = self.count
        for name in ("levels", "offsets", "neighbors"):
            array = library.vector_to_array(getattr(self._index.hnsw, name))
            library.copy_array_to_vector(array, getattr(index.hnsw, name))
        index.hnsw.entry_point, index.hnsw.max_level = self.shape.entry_point, self.shape.max_level
        index.hnsw.efConstruction = _ADDING_EFFORT
        placed = self.space.place(vectors)
        index.add(placed)
        return _finished(library, index, np.concatenate([self.vectors, placed]), self.shape.m, self.space)

    def _parameters(self, ef: int, allowed: NDArray[np.uint8] | None) -> Any:
        if allowed is None:
            found = self._params.get(ef)
            if found is None:
                found = self._params[ef] = self._library.SearchParametersHNSW(efSearch=min(ef, self.count))
            return found
        selector = self._library.IDSelectorBitmap(allowed)
        return self._library.SearchParametersHNSW(efSearch=min(ef, self.count), sel=selector)

    def adjacency(self) -> Adjacency:
        """The neighbour lists, each in ascending order."""
        hnsw = self._index.hnsw
        array = self._library.vector_to_array
        levels = array(hnsw.levels).astype(np.int64)
        offsets = array(hnsw.offsets).astype(np.int64)[:-1]
        return _from_faiss(levels, offsets, array(hnsw.neighbors), self.shape.m)


def _finished(library: Any, index: Any, vectors: Floats, m: int, space: WalkSpace) -> Graph:
    """A graph that was built; every node of it can be reached."""
    shape = GraphShape(m, int(index.hnsw.entry_point), int(index.hnsw.max_level))
    neighbors = library.vector_to_array(index.hnsw.neighbors)
    offsets = library.vector_to_array(index.hnsw.offsets).astype(np.int64)[:-1]
    if not link_unreached(neighbors, offsets, 2 * m, shape.entry_point, vectors):
        return Graph(library, index, shape, vectors, space)
    _set_neighbors(library, index, neighbors)
    return Graph(library, index, shape, vectors, space, (neighbors,))


def _empty(library: Any, dim: int, space: WalkSpace, m: int) -> Any:
    kind = library.METRIC_L2 if space.by_distance else library.METRIC_INNER_PRODUCT
    return library.IndexHNSWFlat(dim, m, kind)


def _fill(library: Any, index: Any, vectors: Floats, neighbors: NDArray[Any]) -> None:
    """Let the graph look at these arrays where they are."""
    storage = library.downcast_index(index.storage)
    raw = vectors.view(np.uint8).reshape(-1)
    owner = storage.codes.owner  # no owner: the arrays live as long as the graph
    storage.codes = library.MaybeOwnedVectorUInt8.create_view(library.swig_ptr(raw), len(raw), owner)
    storage.ntotal = len(vectors)
    _set_neighbors(library, index, neighbors)


def _set_neighbors(library: Any, index: Any, neighbors: NDArray[Any]) -> None:
    owner, slots = index.hnsw.neighbors.owner, library.swig_ptr(neighbors)
    index.hnsw.neighbors = library.MaybeOwnedVectorInt32.create_view(slots, len(neighbors), owner)


@dataclass(frozen=True)
class Copies:
    """Which rows are equal: `first[i]` is the first row with the vector of row i.

    A graph chooses neighbours that differ from each other, so among many equal vectors most would have no link. The
    graph is therefore one of distinct vectors; results are followed by their copies.
    """

    first: Ints

    @classmethod
    def of(cls, vectors: Floats) -> Copies:
        """The equal rows among these; 0 and -0 are equal."""
        hashes = np.empty(len(vectors), np.uint64)
        factors = np.random.default_rng(1).integers(1, 1 << 63, vectors.shape[1], np.uint64) | np.uint64(1)
        for start in range(0, len(vectors), _HASHED_ROWS):
            bits = (vectors[start : start + _HASHED_ROWS] + np.float32(0)).view(np.uint32)
            hashes[start : start + len(bits)] = (bits * factors).sum(axis=1)
        order = np.argsort(hashes, kind="stable")
        same = np.append(False, hashes[order][1:] == hashes[order][:-1])
        starts = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
        first = np.arange(len(vectors))
        first[order] = order[starts]
        alike = np.flatnonzero(first != np.arange(len(first)))
        for start in range(0, len(alike), _HASHED_ROWS):
            rows = alike[start : start + _HASHED_ROWS]
            equal = (vectors[rows] == vectors[first[rows]]).all(axis=1)
            first[rows[~equal]] = rows[~equal]
        return cls(first)

    @cached_property
    def is_first(self) -> Mask:
        """Which rows are not a copy of an earlier one."""
        return np.asarray(self.first == np.arange(len(self.first)))

    @property
    def count(self) -> int:
        """How many rows are copies."""
        return int((~self.is_first).sum())

    @cached_property
    def _groups(self) -> tuple[Ints, Ints, Ints]:
        """Rows in the order of their first ones, and where the group of each first row begins and ends."""
        members = np.argsort(self.first, kind="stable")
        sizes = np.bincount(self.first, minlength=len(self.first))
        starts = np.cumsum(sizes) - sizes
        return members, starts, starts + sizes

    def reachable(self, allowed: Mask) -> Mask:
        """The first rows of which any copy is allowed."""
        found = np.zeros(len(self.first), bool)
        found[self.first[allowed]] = True
        return found

    def expanded(self, rows: Ints, scores: Floats, allowed: Mask | None) -> tuple[Ints, Floats]:
        """Results of a walk over first rows, each followed by its copies, as many as there were results."""
        out, away = np.full_like(rows, -1), np.full_like(scores, np.inf)
        members, starts, ends = self._groups
        k = rows.shape[1]
        for number, row in enumerate(rows):
            found = row[row >= 0]
            sizes = np.minimum(ends[found] - starts[found], k if allowed is None else len(members))
            before = np.cumsum(sizes) - sizes
            at = np.repeat(starts[found] - before, sizes) + np.arange(int(sizes.sum()))
            near, distances = members[at], np.repeat(scores[number, : len(found)], sizes)
            if allowed is not None:
                near, distances = near[allowed[near]], distances[allowed[near]]
            out[number, : len(near[:k])], away[number, : len(near[:k])] = near[:k], distances[:k]
        return out, away

    def spread(self, distinct: Adjacency) -> Adjacency:
        """A graph of the first rows as one of all rows; copies are nodes without links."""
        rows = np.flatnonzero(self.is_first)
        counts = np.ones(len(self.first), np.int64)
        counts[rows] = distinct.layer_counts
        sizes = np.zeros(int(counts.sum()), np.int64)
        sizes[np.repeat(self.is_first, counts)] = distinct.sizes
        return Adjacency(len(self.first), counts, sizes, rows[distinct.neighbors])

    def unlinked(self, adjacency: Adjacency) -> Adjacency:
        """A graph without links to and from copies."""
        lists = np.repeat(np.arange(len(adjacency.sizes)), adjacency.sizes)
        node = np.repeat(np.arange(adjacency.node_count), adjacency.layer_counts)
        kept = self.is_first[adjacency.neighbors] & self.is_first[node][lists]
        sizes = np.bincount(lists[kept], minlength=len(adjacency.sizes))
        return Adjacency(adjacency.node_count, adjacency.layer_counts, sizes, adjacency.neighbors[kept])


def link_unreached(flat: NDArray[np.int32], offsets: Ints, width: int, entry: int, vectors: Floats) -> bool:
    """Give every node that no walk on the lowest level reaches a link from a near one; whether there were such nodes.

    Building drops links as nodes get closer neighbours, and can drop the last one that leads to a node.
    """
    came_from = np.full(len(offsets), -1, np.int64)
    came_from[entry] = entry
    _reach(flat, offsets, width, entry, came_from)
    left = np.flatnonzero(came_from < 0)
    for node in left.tolist():
        if came_from[node] < 0:
            came_from[node] = _link_from_near(flat, offsets, width, node, came_from, vectors)
            _reach(flat, offsets, width, node, came_from)
    return bool(len(left))


def _reach(flat: NDArray[np.int32], offsets: Ints, width: int, start: int, came_from: Ints) -> None:
    """Note for all that can be reached from a node, and was not before, from where."""
    border = np.array([start], np.int64)
    while len(border):
        slots = flat[offsets[border][:, None] + np.arange(width)].ravel()
        found, at = np.unique(slots, return_index=True)
        is_new = (found >= 0) & (came_from[found] < 0)
        came_from[found[is_new]] = border[at[is_new] // width]
        border = found[is_new].astype(np.int64)


def _link_from_near(
    flat: NDArray[np.int32], offsets: Ints, width: int, node: int, came_from: Ints, vectors: Floats
) -> int:
    """A link from the nearest node that is reached and can spare one by which nothing else was reached."""
    own = flat[offsets[node] : offsets[node] + width].astype(np.int64)
    own = own[own >= 0]
    # Its own neighbours are near; where none of them can, another one can.
    for some in (own[came_from[own] >= 0], np.flatnonzero(came_from >= 0)):
        for other in some[_by_distance(vectors, some, node)].tolist():
            slots = flat[offsets[other] : offsets[other] + width]
            at = np.flatnonzero(slots < 0)
            if not len(at):
                farthest = _by_distance(vectors, slots, other)[::-1]
                at = farthest[came_from[slots[farthest]] != other]
            if len(at):
                slots[at[0]] = node
                return int(other)
    raise AssertionError("a graph has more links than it takes to reach every node")


def _by_distance(vectors: Floats, rows: NDArray[Any], node: int) -> Ints:
    """Positions of these rows, the nearest to a node first."""
    away = vectors[rows] - vectors[node]
    return np.argsort(np.einsum("ij,ij->i", away, away), kind="stable")


def _from_faiss(levels: Ints, offsets: Ints, flat: NDArray[np.int32], m: int) -> Adjacency:
    nodes, layers, sizes, lists = ([np.zeros(0, np.int64)] for _ in range(4))
    for level in range(int(levels.max(initial=0))):
        members = np.flatnonzero(levels > level)
        start, width = (0, 2 * m) if level == 0 else (m + level * m, m)
        slots = flat[(offsets[members] + start)[:, None] + np.arange(width)].astype(np.int64)
        slots[slots < 0] = len(levels)
        slots.sort(axis=1)
        valid = slots < len(levels)
        nodes.append(members)
        layers.append(np.full(len(members), level))
        sizes.append(valid.sum(axis=1))
        lists.append(slots[valid])
    node, layer = np.concatenate(nodes), np.concatenate(layers)
    size, neighbors = np.concatenate(sizes), np.concatenate(lists)
    order = np.lexsort((layer, node))
    starts = np.cumsum(size) - size
    ordered = size[order]
    begins = np.cumsum(ordered) - ordered
    at = np.repeat(starts[order] - begins, ordered) + np.arange(len(neighbors))
    return Adjacency(len(levels), levels, ordered, neighbors[at])


def _faiss_arrays(adjacency: Adjacency, m: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Levels, offsets and padded neighbour slots as faiss keeps them."""
    levels = adjacency.layer_counts
    if (levels < 1).any() or m < 1:
        raise CorruptLayoutError("a node of the graph has no layer")
    widths = 2 * m + (levels - 1) * m
    offsets = np.concatenate(([0], np.cumsum(widths)))
    node = np.repeat(np.arange(len(levels)), levels)
    first_list = np.cumsum(levels) - levels
    layer = np.arange(len(node)) - np.repeat(first_list, levels)
    capacity = np.where(layer == 0, 2 * m, m)
    if (adjacency.sizes > capacity).any():
        raise CorruptLayoutError("a node of the graph has more neighbours than fit")
    begins = offsets[node] + np.where(layer == 0, 0, 2 * m + (layer - 1) * m)
    slots = np.full(int(offsets[-1]), -1, np.int32)
    bounds = np.append(adjacency.starts, len(adjacency.neighbors))
    for low in range(0, len(node), _LISTS_AT_ONCE):
        lists = slice(low, low + _LISTS_AT_ONCE)
        sizes, starts = adjacency.sizes[lists], bounds[:-1][lists]
        part = slice(starts[0], bounds[low : low + _LISTS_AT_ONCE + 1][-1])
        neighbors = adjacency.neighbors[part]
        slots[np.repeat(begins[lists] - starts, sizes) + np.arange(part.start, part.stop)] = neighbors
        if (
            levels[neighbors] <= np.repeat(layer[lists], sizes)
        ).any():  # a search would read past their slots
            raise CorruptLayoutError("a neighbour of the graph is not on its level")
    return levels.astype(np.int32), offsets.astype(np.uint64), slots


def _kmeans(vectors: Floats, count: int, rounds: int, seed: int, start: Floats | None = None) -> Floats:
    kmeans = _faiss().Kmeans(
        vectors.shape[1],
        count,
        niter=rounds,
        seed=seed,
        verbose=False,
        min_points_per_centroid=1,
        max_points_per_centroid=len(vectors),
    )
    kmeans.train(np.ascontiguousarray(vectors), init_centroids=start)
    return np.array(kmeans.centroids, np.float32)


def _sampled(vectors: Floats, most: int, rng: np.random.Generator) -> Floats:
    if len(vectors) <= most:
        return vectors
    return np.ascontiguousarray(vectors[np.sort(rng.choice(len(vectors), most, replace=False))])


def cluster(vectors: Floats, count: int, *, seed: int = 1, rounds: int = 10) -> Floats:
    """`count` centroids of the vectors (k-means on a sample)."""
    rng = np.random.default_rng(seed)
    chosen = _sampled(vectors, max(count * 128, 4096), rng)
    centre = chosen.mean(axis=0)
    chosen = chosen - centre
    start = _spread_seeds(chosen, count, rng) if count <= _MAX_SPREAD else None
    return np.asarray(_kmeans(chosen, count, rounds, seed, start) + centre, np.float32)


def _spread_seeds(vectors: Floats, count: int, rng: np.random.Generator) -> Floats:
    """`count` vectors far apart: each the best of a few drawn by their distance to those before (k-means++)."""
    vectors = _sampled(vectors, _SEED_SAMPLE, rng)
    norms = np.einsum("ij,ij->i", vectors, vectors)
    seeds = vectors[rng.choice(len(vectors), count, replace=len(vectors) < count)]
    away = np.maximum(norms - 2 * (vectors @ seeds[0]) + seeds[0] @ seeds[0], 0)
    for number in range(1, count):
        reach = np.cumsum(away, dtype=np.float64)
        if not reach[-1] > 0:
            break
        drawn = np.searchsorted(reach, rng.random(_SEED_TRIALS) * reach[-1], side="right")
        drawn = np.minimum(drawn, len(vectors) - 1)
        after = norms[:, None] - 2 * (vectors @ vectors[drawn].T) + norms[drawn]
        after = np.minimum(np.maximum(after, 0), away[:, None])
        best = int(after.sum(axis=0).argmin())
        seeds[number], away = vectors[drawn[best]], after[:, best]
    return np.ascontiguousarray(seeds)


def balanced_cells(vectors: Floats, count: int, *, seed: int = 1) -> tuple[Floats, Ints]:
    """About `count` centroids and the nearest one of each vector; cells far above the mean are split."""
    centroids = cluster(vectors, count, seed=seed)
    cells = assign(vectors, centroids)
    limit = 2 * max(1, len(vectors) // count)
    sizes = np.bincount(cells, minlength=len(centroids))
    for cell in np.flatnonzero(sizes > limit).tolist():
        members = np.ascontiguousarray(vectors[cells == cell])
        pieces = cluster(members, -(-2 * len(members) // limit), seed=seed)
        centroids[cell] = pieces[0]
        centroids = np.concatenate([centroids, pieces[1:]])
    # As the file keeps them (f16), without those that no vector is nearest to.
    kept = np.clip(centroids, -65504, 65504).astype(np.float16).astype(np.float32)
    cells = assign(vectors, kept)
    used, renamed = np.unique(cells, return_inverse=True)
    return kept[used], renamed.astype(np.int64)


def assign(vectors: Floats, centroids: Floats) -> Ints:
    """The nearest centroid of each vector."""
    index = _faiss().IndexFlatL2(centroids.shape[1])
    # faiss compares batches by |a|^2 - 2ab: far from the origin that loses every digit of near distances.
    centre = centroids.mean(axis=0)
    index.add(np.ascontiguousarray(centroids - centre, np.float32))
    _, found = index.search(np.ascontiguousarray(vectors - centre, np.float32), 1)
    return np.asarray(found[:, 0], np.int64)


def train_codebook(vectors: Floats, m: int, *, seed: int = 1, sample: int = 131_072) -> Floats:
    """A product quantiser's codebook (m, 256, sub_dim); fewer centroids where there are fewer vectors."""
    vectors = _sampled(vectors, sample, np.random.default_rng(seed))
    pieces = np.split(vectors, m, axis=1)
    return np.stack([_kmeans(piece, min(256, len(vectors)), 30, seed) for piece in pieces])


def train_quantiser(kind: str, vectors: Floats, code_bytes: int) -> Quantiser:
    """A quantiser fitted to these vectors; `code_bytes` sets the length of product codes."""
    if kind == "scalar":
        low, high = vectors.min(axis=0), vectors.max(axis=0)
        return ScalarQuant(low, np.where(high > low, high, low + 1).astype(np.float32))
    if kind == "binary":
        return BinaryQuant(np.median(vectors, axis=0).astype(np.float32))
    dim = vectors.shape[1]
    parts = -(-dim // -(-dim // code_bytes))
    if kind == "pq":
        return ProductQuant(dim, train_codebook(widen(vectors, parts), parts))
    count = int(min(4096, max(1, round(1.75 * len(vectors) ** 0.5))))
    centroids = cluster(vectors, count, rounds=25)
    residual = vectors - centroids[assign(vectors, centroids)]
    return ProductQuant(dim, train_codebook(widen(residual, parts), parts), centroids)
