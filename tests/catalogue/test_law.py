"""What comes out: the tokens of ordinary decoding under the mask, or their distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from specgrammar.errors import ConfigError
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import RequestView
from specgrammar.runtime.request import Request
from specgrammar.spec.accept import accept
from specgrammar.spec.sampler import truncate_probs
from specgrammar.spec.sampling import AcceptMethod, SamplingParams
from specgrammar.testing.toys import STOP
from specgrammar.trees.tree import HostTree, SampledProposals
from tests.catalogue.ours import (
    FREE,
    REJECTED,
    A,
    B,
    C,
    backend,
    decoded,
    engine_of,
    every_backend,
    matcher,
    plain_decoding,
)

SPECS = (GrammarSpec.regex("(ab|bc|c){3,40}"), GrammarSpec.regex("(ab){3,9}c"), GrammarSpec.regex("[12]{2,30}"))
NUM = 2000


@every_backend
@pytest.mark.parametrize("policy", ["eager", "lazy"])
def test_failure_17_the_constraint_is_dropped_on_the_speculative_path(name: str, policy: str) -> None:
    requests = [Request(str(n), (A, B) * 4, spec, max_new_tokens=24) for n, spec in enumerate(SPECS)]
    for request, spec in zip(requests, SPECS, strict=True):
        naive = plain_decoding(Request("a", request.prompt_tokens, None, max_new_tokens=24))
        assert matcher(spec).accept_prefix(naive) < len(naive), (
            "the drafts are right, and no mask reaches the verifier"
        )

    num_accepted = 0
    for algorithm in ("none", "ngram", "chain"):
        engine, _ = engine_of(algorithm, backend(name), mask_policy=policy)
        outputs = decoded(engine, *requests)
        for request in requests:
            output = outputs[request.request_id]
            assert list(output.token_ids) == plain_decoding(request)
            assert output.finish_reason == ("stop" if output.token_ids[-1] == STOP else "length")
        num_accepted += engine.trace.num_accepted
    assert num_accepted > 0


def first_tokens(
    drafts: Sequence[int | None],
    law: NDArray[np.float64],
    sampling: Sequence[SamplingParams],
    *,
    method: AcceptMethod = "target_only",
    q: NDArray[np.float64] | None = None,
    dead: int | None = None,
) -> list[int]:
    """The token that each request commits first, one draft each (or none), under one distribution."""
    tree = HostTree.from_chains([[A] if draft is None else [A, draft] for draft in drafts])
    is_root = np.isin(np.arange(tree.num_nodes), tree.cu_nodes[:-1])
    status = np.where(~is_root & (tree.draft_tokens == dead), REJECTED, FREE).astype(np.int8)
    logits = torch.from_numpy(law).log().float().repeat(tree.num_nodes, 1)
    views = [RequestView(str(n), (A,), 1, 9, each) for n, each in enumerate(sampling)]
    sampled = None
    if q is not None:
        sampled = SampledProposals(np.where(is_root, -1, 0), torch.from_numpy(q).float()[None])
    paths = accept(tree, logits, status, views, method=method, sampled=sampled)
    drafted = tree.draft_tokens[np.minimum(tree.cu_nodes[:-1] + 1, tree.num_nodes - 1)]
    first: list[int] = np.where(paths.accept_length > 0, drafted, paths.bonus_token).tolist()
    return first


def shares(tokens: Sequence[int]) -> list[float]:
    """How often each of three tokens came."""
    return [tokens.count(token) / len(tokens) for token in (A, B, C)]


def test_failure_52_truncation_comes_before_the_mask() -> None:
    law, legal = np.array([0.5, 0.3, 0.2]), np.array([0.0, 1.0, 1.0])
    two = SamplingParams(1.0, top_k=2)
    naive = truncate_probs(torch.from_numpy(law).log().float()[None], [two])[0].numpy() * legal
    assert (naive / naive.sum()).tolist() == [0.0, 1.0, 0.0], "the third token never comes"

    with np.errstate(divide="ignore"):
        masked = torch.from_numpy(law * legal).log().float()[None]
    assert truncate_probs(masked, [two])[0].tolist() == pytest.approx([0.0, 0.6, 0.4])
    tokens = first_tokens([B] * NUM, law * legal, [SamplingParams(1.0, top_k=2, seed=n) for n in range(NUM)])
    assert shares(tokens) == pytest.approx([0.0, 0.6, 0.4], abs=0.03)
    requests = [
        Request(str(n), (A, B), SPECS[0], SamplingParams(1.5, top_k=2 + n % 3, top_p=0.9, seed=n), 20)
        for n in range(6)
    ]
    eager, lazy = (
        decoded(engine_of("ngram", mask_policy=policy)[0], *requests) for policy in ("eager", "lazy")
    )
    assert {n: output.token_ids for n, output in eager.items()} == {
        n: output.token_ids for n, output in lazy.items()
    }


def test_failure_53_rejection_sampling_of_drafts_that_were_not_drawn() -> None:
    p, q = np.array([0.3, 0.3, 0.4]), np.array([0.6, 0.4, 0.0])
    draft = int(q.argmax())  # the head's best token, judged as if it had been drawn from q
    chance, rest = min(1.0, p[draft] / q[draft]), np.maximum(p - q, 0)
    naive = chance * np.eye(3)[draft] + (1 - chance) * rest / rest.sum()
    assert naive.tolist() == pytest.approx([0.5, 0.0, 0.5]), "and the second token never comes"

    with pytest.raises(ConfigError, match="drawn from a stated distribution"):
        engine_of("ngram", acceptance="rejection")
    seeds = [SamplingParams(1.0, seed=n) for n in range(NUM)]
    drafted, plain = first_tokens([draft] * NUM, p, seeds), first_tokens([None] * NUM, p, seeds)
    assert drafted == plain, "the tokens of ordinary decoding, one by one"
    assert shares(drafted) == pytest.approx(p.tolist(), abs=0.03)


def test_failure_54_a_sampled_child_is_pruned_by_the_grammar() -> None:
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.0, 0.5])  # p is masked: the third token is illegal
    keeps_a, is_pruned = q[A] * min(1.0, p[A] / q[A]), q[C]
    naive = keeps_a * np.eye(3)[A] + is_pruned * p  # without a child the token is drawn from p
    assert naive.tolist() == [0.75, 0.25, 0.0]

    drawn = [A, C] * (NUM // 2)  # as often as q says
    seeds = [SamplingParams(1.0, seed=n) for n in range(NUM)]
    with np.errstate(divide="ignore"):
        tokens = first_tokens(drawn, p, seeds, method="rejection", q=q, dead=C)
    assert shares(tokens) == [0.5, 0.5, 0.0], "an illegal child is rejected by the law, and moves what is left"
