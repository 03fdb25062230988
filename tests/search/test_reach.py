"""Graphs in which a search can arrive at every node."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdata.search.query.ann import Graph, has_faiss, link_unreached
from warpdata.search.query.distance import WalkSpace

WIDTH = 3


def reached(flat: np.ndarray, count: int, entry: int) -> set[int]:
    seen, border = {entry}, [entry]
    while border:
        found = {
            int(each) for node in border for each in flat[node * WIDTH : node * WIDTH + WIDTH] if each >= 0
        }
        border = sorted(found - seen)
        seen |= found
    return seen


@given(st.data())
def test_every_node_of_a_graph_is_reached_and_no_list_has_holes(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    lists = [
        data.draw(st.lists(st.integers(0, count - 1).filter(lambda each, own=node: each != own), max_size=WIDTH,
                           unique=True))
        if count > 1 else []
        for node in range(count)
    ]  # fmt: skip
    flat = np.array([[*each, *[-1] * (WIDTH - len(each))] for each in lists], np.int32).ravel()
    before = flat.copy()
    entry = data.draw(st.integers(0, count - 1))
    vectors = np.random.default_rng(count).normal(size=(count, 2)).astype(np.float32)
    was_whole = len(reached(flat, count, entry)) == count
    changed = link_unreached(flat, np.arange(count) * WIDTH, WIDTH, entry, vectors)
    assert changed is not was_whole
    assert not was_whole or np.array_equal(flat, before)
    assert reached(flat, count, entry) == set(range(count))
    for row in flat.reshape(count, WIDTH).tolist():
        known = [each for each in row if each >= 0]
        assert row == known + [-1] * (WIDTH - len(known))
        assert len(set(known)) == len(known)


@pytest.mark.skipif(not has_faiss(), reason="faiss is an extra")
def test_every_vector_of_a_built_graph_finds_itself() -> None:
    vectors = np.random.default_rng(1).normal(size=(600, 12)).astype(np.float32)
    vectors[:40] *= 5
    # So few links that building drops the last ones to some nodes.
    graph = Graph.build(vectors, WalkSpace("l2", True), 4, 20)
    rows, _ = graph.search(vectors, 1, 600)
    assert rows[:, 0].tolist() == list(range(600))
