"""Branches are cut where they do not pay, by what was measured; what is left is the whole tree's best part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specgrammar.config import Config
from specgrammar.errors import ConfigError
from specgrammar.protocols.spec import Commit
from specgrammar.protocols.staging import Device
from specgrammar.registry import ALGORITHMS, algorithm_of, create
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import InlineDevice
from specgrammar.spec.eagle import growth as growth_module
from specgrammar.spec.eagle.budget import BranchBudget, Cut, least_chance
from specgrammar.spec.eagle.build import build_trees_torch
from specgrammar.spec.eagle.build_kernels import build_trees_triton
from specgrammar.spec.eagle.chain_growth import ChainGrowth
from specgrammar.spec.eagle.growth import Growth
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.trees.links import links_from_parents
from specgrammar.trees.tree import HostTree
from specgrammar.trees.validate import validate_tree

LEAST = (-math.inf, -3.0, -1.5, -0.75, -0.25, 0.0)


def rate(chances: Sequence[float], bs: int, fixed: float, node_s: float) -> float:
    """Expected tokens a second where these drafts are verified."""
    return (bs + sum(chances)) / (fixed + node_s * len(chances))


@given(
    st.lists(st.floats(0.0, 1.0), max_size=8),
    st.integers(1, 3),
    st.floats(0.1, 10.0),
    st.floats(0.0, 5.0),
)
def test_what_pays_comes_to_the_most_tokens_a_second(
    chances: list[float], bs: int, fixed: float, node_s: float
) -> None:
    """From ordinary decoding on no choice is slower than the one before, and the last is the best of all."""
    kept: list[float] = []
    for _ in range(len(chances) + 2):
        now = rate(kept, bs, fixed, node_s)
        least = least_chance(node_s, 1 / now)
        kept = [chance for chance in chances if chance > least]
        assert rate(kept, bs, fixed, node_s) >= now * (1 - 1e-9)
    best = max(
        rate(some, bs, fixed, node_s)
        for number in range(len(chances) + 1)
        for some in combinations(chances, number)
    )
    assert rate(kept, bs, fixed, node_s) == pytest.approx(best)


def test_free_nodes_pay_always_and_those_that_cost_a_token_never() -> None:
    assert least_chance(0.0, 2.0) == 0.0
    assert least_chance(0.5, 2.0) == 0.25
    assert least_chance(0.5, 2.0, calibration=0.5) == 0.5
    assert least_chance(2.0, 2.0) == least_chance(9.0, 2.0) == 1.0
    assert least_chance(0.0, 2.0, calibration=0.0) == 0.0
    assert least_chance(0.1, 2.0, calibration=0.0) == 1.0, "nothing is ever accepted"


class Grown:
    """A batch of grown trees whose tokens are the candidates' numbers; all sums are exact."""

    def __init__(self, data: st.DataObject) -> None:
        draw = data.draw
        self.bs, self.topk, self.num_steps = draw(st.integers(1, 3)), draw(st.integers(1, 3)), 3
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
        no_draft = draw(st.sampled_from([0.0, 0.2]))

        def logprobs(*shape: int) -> Tensor:
            values = -torch.randint(0, 7, (self.bs, *shape), generator=generator).float() / 8
            return values.masked_fill(torch.rand(values.shape, generator=generator) < no_draft, -torch.inf)

        def numbers(*shape: int) -> Tensor:
            count = math.prod(shape)
            self.num_candidates += count
            begin = self.num_candidates - count
            return torch.arange(begin, begin + count).view(1, *shape).repeat(self.bs, *(1 for _ in shape))

        self.num_candidates, k = 0, self.topk
        self.growth = Growth(numbers(k), logprobs(k))
        for _ in range(self.num_steps - 1):
            self.growth.grow(numbers(k, k), logprobs(k, k))
        self.roots = torch.arange(self.bs) + 1000
        self.scores = self.growth.candidates()[2].tolist()
        self.num_nodes = draw(st.integers(2, self.num_candidates + 3))

    def whole(self) -> list[list[int]]:
        """The tokens of each tree without a budget, padding left out."""
        return [[t for t in row if t >= 0] for row in self.build(None).tokens.tolist()]

    def build(self, cut: Cut | None) -> HostedTrees:
        trees = self.growth.build(self.roots, self.num_nodes, cut)
        host = HostTree.from_dense(
            *(part.numpy() for part in (trees.tokens, trees.next_token, trees.next_sibling))
        )
        return HostedTrees(trees.tokens, trees.parents, host)

    def check(self, cut: Cut, expected: list[list[int]]) -> None:
        """The trees have these tokens in their order, then padding; links are those between them."""
        made = self.build(cut)
        padding = [[-1] * (self.num_nodes - len(row)) for row in expected]
        assert made.tokens.tolist() == [[*row, *more] for row, more in zip(expected, padding, strict=True)]
        above = self.growth.candidates()[1].tolist()
        parents = [
            [
                -1,
                *(row.index(above[b][token]) if above[b][token] >= 0 else 0 for token in row[1:]),
                *padding[b],
            ]
            for b, row in enumerate(expected)
        ]
        assert made.parents.tolist() == parents
        validate_tree(made.host)
        links = links_from_parents(made.host.cu_nodes, made.parents.flatten().numpy())
        assert made.host.retrieve_next_token.tolist() == links[0].tolist()
        assert made.host.retrieve_next_sibling.tolist() == links[1].tolist()


class HostedTrees:
    """What was built, and the same as a tree of the host's."""

    def __init__(self, tokens: Tensor, parents: Tensor, host: HostTree) -> None:
        self.tokens, self.parents, self.host = tokens, parents, host


BUILDERS = (build_trees_torch, build_trees_triton)


@settings(max_examples=60)
@given(st.data(), st.sampled_from(BUILDERS), st.sampled_from(LEAST))
def test_the_nodes_above_the_least_are_kept_and_no_others(
    data: st.DataObject, build: Callable[..., object], least: float
) -> None:
    with patch.object(growth_module, "build_trees", build):
        grown = Grown(data)
        expected = [
            [token for token in row if token >= 1000 or grown.scores[b][token] > least]
            for b, row in enumerate(grown.whole())
        ]
        grown.check(Cut(least), expected)


@settings(max_examples=60)
@given(st.data(), st.sampled_from(BUILDERS), st.integers(0, 12), st.sampled_from(LEAST[:3]))
def test_a_number_is_given_to_the_best_of_the_batch(
    data: st.DataObject, build: Callable[..., object], most: int, least: float
) -> None:
    with patch.object(growth_module, "build_trees", build):
        grown = Grown(data)
        ranked = sorted(
            (-grown.scores[b][token], b, token)
            for b, row in enumerate(grown.whole())
            for token in row[1:]
            if grown.scores[b][token] > least
        )
        kept = {(b, token) for _, b, token in ranked[:most]}
        expected = [
            [token for token in row if token >= 1000 or (b, token) in kept]
            for b, row in enumerate(grown.whole())
        ]
        sums = torch.zeros(2)
        grown.check(Cut(least, most, sums), expected)
        chances = [math.exp(-score) for score, _, _ in ranked[:most]]
        assert sums.tolist() == pytest.approx([len(kept), sum(chances)])


@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from(LEAST),
    st.none() | st.integers(0, 9),
)
def test_the_tails_of_chains_become_padding(
    seed: int, bs: int, num_steps: int, least: float, most: int | None
) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, 99, (bs, 1, 1), generator=generator) for _ in range(num_steps)]
    logprobs = [-torch.randint(0, 9, (bs, 1, 1), generator=generator).float() / 8 for _ in ids]
    for part in logprobs:
        part[torch.rand(part.shape, generator=generator) < 0.1] = -torch.inf
    fast, general = ChainGrowth(ids[0][:, 0], logprobs[0][:, 0]), Growth(ids[0][:, 0], logprobs[0][:, 0])
    for growth in (fast, general):
        for more_ids, more_logprobs in zip(ids[1:], logprobs[1:], strict=True):
            growth.grow(more_ids, more_logprobs)
    roots = torch.arange(bs)
    tokens = fast.build(roots, Cut(least, most))
    assert torch.equal(tokens, general.build(roots, num_steps + 1, Cut(least, most)).tokens)
    if most is None:
        scores = torch.cat(logprobs, 1)[:, :, 0].cumsum(1)
        is_kept = (scores > least).tolist()
        assert (tokens[:, 1:] >= 0).tolist() == is_kept


class Clock:
    """Steps of a head that expects `chances`: of n kept drafts one takes `fixed + node_s * n` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fixed: float, node_s: float) -> None:
        self.now, self.fixed, self.node_s, self.truth, self.owed = 0.0, fixed, node_s, 1.0, 0.0
        self.requests = ["a", "b"]
        monkeypatch.setattr("specgrammar.spec.step_costs.time.perf_counter", lambda: self.now)

    def step(self, budget: BranchBudget, device: Device, chances: Sequence[float]) -> int:
        """One step; how many drafts it kept. `truth` of what the head expects is accepted."""
        bs, kept = len(self.requests), [0.0]
        cut = budget.begin(self.requests)
        scores = torch.tensor(chances).log().expand(bs, -1)
        made = device.launch(lambda: cut(scores))
        budget.launched()
        kept = [math.exp(score) for score in made.wait().flatten().tolist() if score > -math.inf]
        self.now += self.fixed + self.node_s * len(kept)
        self.owed += self.truth * sum(kept)
        accepted, self.owed = int(self.owed), self.owed - int(self.owed)
        budget.observe([Commit(name, (), 0, accepted * (i == 0), False) for i, name in enumerate("ab")])
        return len(kept)


CHANCES = (0.9, 0.8, 0.7, 0.4, 0.3, 0.2, 0.1, 0.05)


@pytest.mark.parametrize("device", [InlineDevice, CpuStream, DelayedDevice])
@pytest.mark.parametrize("truth", [1.0, 0.5])
@pytest.mark.parametrize("node_s", [0.0, 0.02, 0.06, 0.13, 1.2])
def test_what_is_measured_decides(
    node_s: float, truth: float, device: Callable[[], Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For two requests with equal trees: as many nodes as give the most tokens a second."""
    clock, made = Clock(monkeypatch, 1.0, node_s), device()
    clock.truth = truth
    budget = BranchBudget(len(CHANCES), made)
    numbers = [clock.step(budget, made, CHANCES) for _ in range(400)]
    assert numbers[:8] == [16, 8, 4, 0] * 2, "budgets take turns at first"
    rates = [rate([truth * c for c in CHANCES[:n] * 2], 2, 1.0, node_s) for n in range(9)]
    best = max(range(9), key=rates.__getitem__)
    assert set(numbers[-40:]) == {2 * best}
    assert (best == 8) == (node_s == 0.0)
    assert (best == 0) == (node_s == 1.2)


def test_a_head_that_was_not_trusted_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, device = Clock(monkeypatch, 1.0, 0.1), InlineDevice()
    clock.truth, budget = 0.0, BranchBudget(len(CHANCES), device)
    numbers = [clock.step(budget, device, CHANCES) for _ in range(60)]
    assert numbers[30:] == [0] * 30
    clock.truth = 1.0
    numbers = [clock.step(budget, device, CHANCES) for _ in range(2000)]
    assert min(numbers[-100:]) > 0


@pytest.mark.parametrize("when", range(4))
def test_what_prompts_cost_is_not_the_drafts(when: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, device = Clock(monkeypatch, 1.0, 0.0), InlineDevice()
    budget = BranchBudget(len(CHANCES), device)
    number = 0
    for step in range(60):
        number = clock.step(budget, device, CHANCES)
        if step % 4 == when:
            clock.now += 100.0  # the next requests' prompts, behind a step with the largest budget or none
            clock.requests = [f"{name}{step}" for name in "ab"]
        elif step % 4 == (when + 1) % 4:
            clock.now += 100.0  # the head reads them in their first step
    assert number == 16


def test_invariant_13_replicas_cut_at_what_they_agree_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def agree(number: int) -> int:
        asked.append(number)
        return 1 << 19  # the other's

    clock, device = Clock(monkeypatch, 1.0, 0.0), InlineDevice()
    budget = BranchBudget(len(CHANCES), device, agree)
    numbers = [clock.step(budget, device, CHANCES) for _ in range(30)]
    assert numbers[20:] == [6] * 10, "those above one half"
    assert asked == [0] * 10, "its own nodes are free"


def test_a_budget_goes_where_it_is_kept_to() -> None:
    alone = algorithm_of(Config(algorithm="eagle", budget="auto"))
    assert alone == create(ALGORITHMS, "eagle", budget="auto")
    assert algorithm_of(Config(algorithm="eagle", budget=3)) == create(ALGORITHMS, "eagle", budget=3)
    assert algorithm_of(Config(algorithm="eagle")) == create(ALGORITHMS, "eagle")
    with pytest.raises(ConfigError, match="drop the option"):
        algorithm_of(Config(algorithm="eagle", algorithm_options={"budget": 2}, budget=3))
    for nested in ("auto", 2):
        options = {"eagle": {"budget": nested}}
        with pytest.raises(ConfigError, match="'eagle' has a budget of its own"):
            algorithm_of(Config(algorithm="forced+eagle", algorithm_options=options))
    for wrong in (0, "most", 1.5, True):
        with pytest.raises(ConfigError, match=r"eagle: budget \(auto, or a number\) = "):
            create(ALGORITHMS, "eagle", budget=wrong)


def test_the_step_in_flight_is_not_waited_for() -> None:
    device, scores = DelayedDevice(), torch.tensor(CHANCES).log()[None]
    budget = BranchBudget(len(CHANCES), device)
    for step in range(30):
        num_done = device.num_done
        cut = budget.begin(["a"])
        assert device.num_done == num_done
        device.run_all()  # the step before is resolved, and then this one is launched
        made = device.launch(partial(cut, scores))
        budget.launched()
        assert not made.done(), step
