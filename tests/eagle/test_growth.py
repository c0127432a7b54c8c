"""Trees that are grown level by level, against a search over paths that is written down plainly."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specgrammar.spec.eagle.build import links_of
from specgrammar.spec.eagle.chain_growth import ChainGrowth, is_chain
from specgrammar.spec.eagle.growth import Growth
from specgrammar.trees.links import links_from_parents
from specgrammar.trees.tree import HostTree
from specgrammar.trees.validate import validate_tree

VOCAB = 12
Path = tuple[int, ...]


def law(seed: int, path: Path, topk: int) -> tuple[list[int], list[float]]:
    """The best tokens behind a path and their log-probabilities, some of them no draft; ties are common."""
    rng = np.random.default_rng([seed, *path])
    weights = rng.integers(1, 6, VOCAB).astype(np.float64)
    weights[rng.random(VOCAB) < 0.4] = 0.0
    if not weights.any():
        return list(range(topk)), [-math.inf] * topk
    with np.errstate(divide="ignore"):
        logprobs = np.log(weights / weights.sum()).astype(np.float32)
    order = np.argsort(-logprobs, kind="stable")[:topk]
    return order.tolist(), logprobs[order].tolist()


def tensors(laws: list[list[tuple[list[int], list[float]]]]) -> tuple[Tensor, Tensor]:
    ids = torch.tensor([[ids for ids, _ in row] for row in laws])
    return ids, torch.tensor([[logprobs for _, logprobs in row] for row in laws], dtype=torch.float32)


def grown(seeds: list[int], topk: int, num_steps: int, num_nodes: int) -> list[dict[int, Path]]:
    """Each request's nodes by number, as `Growth` has them; checks what it says of its frontiers."""
    ids, logprobs = tensors([[law(seed, (), topk)] for seed in seeds])
    growth = Growth(ids[:, 0], logprobs[:, 0])
    paths: list[list[Path]] = [[(int(token),) for token in row] for row in ids[:, 0]]
    expanded: list[list[Path]] = [[] for _ in seeds]
    for _ in range(num_steps - 1):
        for b, own in enumerate(paths):
            assert growth.frontier_tokens[b].tolist() == [path[-1] for path in own]
            expanded[b] += own
            for place, path in enumerate(own):
                begins = [path[: len(other)] == other for other in expanded[b]]
                seen = growth.ancestors[b, place].tolist()
                # Equal paths do not occur: a node's children are different tokens.
                assert seen == begins
        laws = [[law(seed, path, topk) for path in own] for seed, own in zip(seeds, paths, strict=True)]
        growth.grow(*tensors(laws))
        tokens = growth.frontier_tokens.tolist()
        paths = [
            [(*own[above], token) for above, token in zip(growth.above[b].tolist(), tokens[b], strict=True)]
            for b, own in enumerate(paths)
        ]
    trees = growth.build(torch.arange(len(seeds)) + 20, num_nodes)
    host = HostTree.from_dense(*(part.numpy() for part in (trees.tokens, trees.next_token, trees.next_sibling)))
    validate_tree(host)
    assert (host.parents().reshape(len(seeds), -1) == trees.parents.numpy()).all()
    found = []
    for b in range(len(seeds)):
        nodes: dict[int, Path] = {}
        for node, (token, parent) in enumerate(
            zip(trees.tokens[b].tolist(), trees.parents[b].tolist(), strict=True)
        ):
            if node == 0:
                assert (token, parent) == (20 + b, -1)
                nodes[0] = ()
            elif token >= 0:
                nodes[node] = (*nodes[parent], token)
        assert list(nodes) == list(range(len(nodes))), "padding is not at the end"
        found.append(nodes)
    return found


def searched(seed: int, topk: int, num_steps: int, num_nodes: int) -> set[Path]:
    """The same, path by path."""
    scores: dict[Path, float] = {}
    frontier: list[tuple[Path, float]] = [((), 0.0)]
    for _ in range(num_steps):
        level = []
        for path, score in frontier:
            ids, logprobs = law(seed, path, topk)
            level += [
                ((*path, i), float(np.float32(score) + np.float32(p)))
                for i, p in zip(ids, logprobs, strict=True)
            ]
        scores |= dict(level)
        frontier = sorted(level, key=lambda one: -one[1])[:topk]
    best = sorted(scores, key=lambda path: -scores[path])[: num_nodes - 1]
    return {(), *(path for path in best if scores[path] > -math.inf)}


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(2, 24),
)
def test_the_best_nodes_are_kept_in_the_order_in_which_they_were_found(
    seeds: list[int], topk: int, num_steps: int, num_nodes: int
) -> None:
    for seed, nodes in zip(seeds, grown(seeds, topk, num_steps, num_nodes), strict=True):
        assert len(set(nodes.values())) == len(nodes)
        assert set(nodes.values()) == searched(seed, topk, num_steps, num_nodes)
        depths = [len(path) for path in nodes.values()]
        assert depths == sorted(depths)


@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 4))
def test_links_are_those_of_the_host(seed: int, num_nodes: int, bs: int) -> None:
    rng = np.random.default_rng(seed)
    parents = np.array([[-1, *(int(rng.integers(i)) for i in range(1, num_nodes))] for _ in range(bs)])
    parents[:, num_nodes - int(rng.integers(num_nodes)) :] = -1  # padding at the end
    cu_nodes = np.arange(bs + 1) * num_nodes
    expected = links_from_parents(cu_nodes, parents.reshape(-1))
    for found, wanted in zip(links_of(torch.from_numpy(parents)), expected, strict=True):
        assert found.reshape(-1).tolist() == wanted.tolist()


@given(
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.integers(1, 3),
)
def test_the_fast_path_gives_the_general_paths_chains(
    seed: int, bs: int, num_steps: int, no_draft: float, num_batches: int
) -> None:
    """For every width, a single step included, and whatever was grown before with another configuration."""
    generator = torch.Generator().manual_seed(seed)
    for batch in range(num_batches):
        steps = max(1, num_steps - batch)
        ids = [torch.randint(0, 99, (bs, 1, 1), generator=generator) for _ in range(steps)]
        logprobs = [-torch.rand(bs, 1, 1, generator=generator) for _ in range(steps)]
        for part in logprobs:
            part[torch.rand(part.shape, generator=generator) < no_draft] = -torch.inf
        fast, general = ChainGrowth(ids[0][:, 0], logprobs[0][:, 0]), Growth(ids[0][:, 0], logprobs[0][:, 0])
        for more_ids, more_logprobs in zip(ids[1:], logprobs[1:], strict=True):
            for growth in (fast, general):
                growth.grow(more_ids, more_logprobs)
            assert torch.equal(fast.frontier_tokens, general.frontier_tokens)
            assert torch.equal(fast.ancestors, general.ancestors)
            outputs = torch.rand(bs, 1, 3, generator=generator)
            assert torch.equal(fast.at_parents(outputs), general.at_parents(outputs))
        trees = general.build(torch.arange(bs), steps + 1)
        assert torch.equal(fast.build(torch.arange(bs)), trees.tokens)
        assert is_chain(1, steps, steps + 1)


def test_other_shapes_fall_back() -> None:
    assert not is_chain(1, 4, 4)
    assert not is_chain(2, 4, 5)
