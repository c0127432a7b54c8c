"""Paths that lie where native code and acceptances have them."""

from __future__ import annotations

from specgrammar.trees.paths import Paths
from specgrammar.trees.tree import HostTree

TREE = HostTree.from_chains([[0] * 3, [0], [0] * 4])


def test_paths_grow_and_tell_where_they_end() -> None:
    paths = Paths(TREE)
    paths.begin(range(3))
    assert paths.nodes.tolist() == [[0, -1, -1, -1]] * 3, "an empty path has its root"
    paths.extend(2, [4, 6], [9, 8])
    paths.extend(2, [7], [-1])
    paths.extend(0, [0, 1, 2], [5, 6, 7])
    paths.extend(1, [], [])
    assert paths.lengths.tolist() == [3, 0, 3]
    assert paths.num_accepted.tolist() == [2, 0, 2]
    assert (paths.last(0), paths.last(2)) == (2, 7)
    assert paths.nodes.tolist() == [[0, 1, 2, -1], [0, -1, -1, -1], [0, 2, 3, -1]]
    assert paths.tokens[2, :3].tolist() == [9, 8, -1]
    assert paths.bonus.tolist() == [7, -1, -1]
    paths.choose(2, 11)
    assert (paths.tokens[2, 2], paths.bonus[2]) == (11, 11)


def test_paths_begin_again() -> None:
    paths = Paths(TREE)
    paths.begin([0, 1, 2])
    paths.extend(0, [0, 1], [5, 6])
    paths.extend(2, [4, 5, 6, 7], [5, 6, 7, 8])
    paths.num_moved[2] = paths.stuck[2] = paths.why[2] = 1
    paths.begin([1, 2])
    assert paths.lengths.tolist() == [2, 0, 0]
    assert paths.nodes.tolist() == [[0, 1, -1, -1], [0, -1, -1, -1], [0, -1, -1, -1]]
    assert (paths.bonus[2], paths.num_accepted[2], paths.moves(2)) == (-1, 0, [])
    assert paths.stuck[2] == paths.why[2] == -1


def test_an_empty_batch_has_one_column() -> None:
    paths = Paths(HostTree.roots([]))
    paths.begin([])
    assert paths.nodes.shape == paths.tokens.shape == (0, 1)
