"""Paths that lie where their requests' nodes do."""

from __future__ import annotations

import numpy as np

from specgrammar.trees.paths import Paths

CU_NODES = np.array([0, 3, 4, 8])


def test_paths_grow_and_tell_where_they_end() -> None:
    paths = Paths(CU_NODES)
    assert paths.lengths.tolist() == [0, 0, 0]
    assert paths.nodes[CU_NODES[:-1]].tolist() == [0, 3, 4], "an empty path has its root at its place"
    paths.extend(2, [4, 6], [9, 8])
    paths.extend(2, [7], [-1])
    paths.extend(0, [0, 1, 2], [5, 6, 7])
    assert paths.lengths.tolist() == [3, 0, 3]
    assert (paths.last(0), paths.last(2)) == (2, 6)
    assert paths.nodes[4:7].tolist() == [4, 6, 7]
    assert paths.tokens[4:7].tolist() == [9, 8, -1]
    assert paths.nodes[3] == 3


def test_rows_say_which_places_are_a_paths_own() -> None:
    paths = Paths(CU_NODES)
    places, inside = paths.rows(np.array([3, 1, 4]))
    assert places.max() < CU_NODES[-1], "all of them can be read"
    assert inside.tolist() == [[True] * 3 + [False], [True] + [False] * 3, [True] * 4]
    assert places[inside].tolist() == list(range(8))
    assert paths.rows(np.zeros(3, np.int64))[1].tolist() == [[False]] * 3


def test_an_empty_batch_has_one_column() -> None:
    places, inside = Paths(np.array([0])).rows(np.empty(0, np.int64))
    assert places.shape == inside.shape == (0, 1)
