"""Paths that lie where native code and acceptances have them."""

from __future__ import annotations

import numpy as np

from specgrammar.trees.paths import Paths

CU_NODES = np.array([0, 3, 4, 8])


def test_paths_grow_and_tell_where_they_end() -> None:
    paths = Paths(CU_NODES)
    assert paths.nodes.tolist() == [[0, -1, -1, -1]] * 3, "an empty path has its root"
    paths.extend(2, [4, 6], [9, 8])
    paths.extend(2, [7], [-1])
    paths.extend(0, [0, 1, 2], [5, 6, 7])
    paths.extend(1, [], [])
    assert paths.lengths.tolist() == [3, 0, 3]
    assert (paths.last(0), paths.last(2)) == (2, 7)
    assert paths.nodes.tolist() == [[0, 1, 2, -1], [0, -1, -1, -1], [0, 2, 3, -1]]
    assert paths.tokens[2, :3].tolist() == [9, 8, -1]
    assert paths.bonus.tolist() == [7, -1, -1]
    paths.choose(2, 11)
    assert (paths.tokens[2, 2], paths.bonus[2]) == (11, 11)


def test_an_empty_batch_has_one_column() -> None:
    paths = Paths(np.array([0]))
    assert paths.nodes.shape == paths.tokens.shape == (0, 1)
