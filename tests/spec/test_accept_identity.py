"""Same seed, same tokens: output is that of ordinary decoding, whatever the tree, the batch and the steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.spec.sampling import AcceptMethod, SamplingParams
from tests.spec.harness import LAWS, TOY, UNMASKED_Q, requests_of, sampled_drafts
from tests.spec.toy import VOCAB, Drafts, Propose, Toy, decode, no_drafts

LENGTH = 12
GREEDY = SamplingParams()

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    top_k=st.sampled_from([0, 0, 2, 3]),
    top_p=st.sampled_from([1.0, 0.9, 0.6]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**63 - 1),
)


def random_trees(seed: int, max_nodes: int, toy: Toy) -> Propose:
    """Trees of any shape, padding among them; most nodes guess what the target finds likely."""
    rng = np.random.default_rng(seed)
    likely = (-toy.masked[:, :VOCAB]).argsort(axis=1)

    def propose(last: NDArray[np.int64], *_: NDArray[np.int64]) -> Drafts:
        num_nodes = int(rng.integers(1, max_nodes + 1))
        tokens = np.full((len(last), num_nodes), -1)
        parents = np.full_like(tokens, -1)
        tokens[:, 0] = last
        for request in range(len(last)):
            real = [0]
            for node in range(1, num_nodes):
                if rng.random() < 0.1:
                    continue
                parent = real[-1 - min(int(rng.geometric(0.5)) - 1, len(real) - 1)]
                guess = likely[tokens[request, parent], min(int(rng.geometric(0.5)) - 1, VOCAB - 1)]
                tokens[request, node] = guess if rng.random() < 0.9 else rng.integers(VOCAB)
                parents[request, node] = parent
                real.append(node)
        return Drafts(tokens, parents)

    return propose


@settings(max_examples=60)
@given(
    world=st.integers(0, 50),
    params=st.lists(PARAMS, min_size=1, max_size=5),
    trees=st.integers(0, 2**32),
    max_nodes=st.integers(1, 14),
    method=st.sampled_from(["target_only", "rejection"]),
)
def test_invariant_11_any_tree_gives_the_tokens_of_ordinary_decoding(
    world: int, params: list[SamplingParams], trees: int, max_nodes: int, method: AcceptMethod
) -> None:
    """Token for token and log-probability for log-probability, bit by bit, greedy and sampled in one batch.

    Drafts that were chosen take the target-only way under either method.
    """
    toy = Toy.make(world)
    ordinary = decode(toy, params, LENGTH, no_drafts)
    drafted = decode(toy, params, LENGTH, random_trees(trees, max_nodes, toy), method=method)
    assert drafted.tokens.tolist() == ordinary.tokens.tolist()
    assert drafted.logprobs.tobytes() == ordinary.logprobs.tobytes()
    assert (drafted.num_steps <= ordinary.num_steps).all()


@pytest.mark.parametrize("law", [GREEDY, *LAWS], ids=str)
def test_tokens_do_not_depend_on_the_batch(law: SamplingParams) -> None:
    params = requests_of(law, 8)
    together = decode(TOY, params, LENGTH, random_trees(1, 8, TOY))
    for index, alone in enumerate(params):
        assert decode(TOY, [alone], LENGTH, no_drafts).tokens.tolist() == [together.tokens[index].tolist()]


def test_drafts_are_accepted_at_all() -> None:
    """Guesses that follow the target save steps; else the tests above would prove nothing."""
    params = requests_of(GREEDY, 50)
    ordinary = decode(TOY, params, LENGTH, no_drafts)
    drafted = decode(TOY, params, LENGTH, random_trees(0, 14, TOY))
    assert drafted.num_steps.mean() < 0.7 * ordinary.num_steps.mean()


def test_greedy_under_rejection_is_ordinary_greedy() -> None:
    """Sampled drafts do not move a request that does not sample."""
    params = requests_of(GREEDY, 500)
    ordinary = decode(TOY, params, LENGTH, no_drafts)
    drafted = decode(TOY, params, LENGTH, sampled_drafts(1, UNMASKED_Q), method="rejection")
    assert drafted.tokens.tolist() == ordinary.tokens.tolist()
    assert drafted.num_steps.mean() < 0.9 * ordinary.num_steps.mean()


def test_greedy_and_sampled_requests_mix_under_rejection() -> None:
    greedy, sampling = requests_of(GREEDY, 300), requests_of(LAWS[0], 300)
    mixed = decode(TOY, [*greedy, *sampling], LENGTH, sampled_drafts(1, UNMASKED_Q), method="rejection")
    assert mixed.tokens[:300].tolist() == decode(TOY, greedy, LENGTH, no_drafts).tokens.tolist()
    assert len(np.unique(mixed.tokens[300:], axis=0)) > 100
