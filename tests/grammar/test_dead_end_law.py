"""Drafts and dead ends: a legal token behind which nothing is legal must keep its share of the law."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.staging import Resolved
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.protocols.spec import RequestView
from specgrammar.runtime.device import InlineDevice
from specgrammar.spec.accept import accept
from specgrammar.spec.sampling import AcceptMethod, SamplingParams
from specgrammar.testing.toys import VOCABULARY
from specgrammar.trees.tree import HostTree, SampledProposals
from tests.toys import BACKEND_NAMES, matcher

NUM = 4000
"""Requests, and with them draws. A bias of .05 (as from .5 to .55) goes unnoticed at LEVEL with p < 0.1 %."""
LEVEL = 1e-6


@pytest.mark.parametrize("name", BACKEND_NAMES)
@pytest.mark.parametrize("method", ["target_only", "rejection"])
def test_invariant_11_a_dead_end_keeps_its_share(name: str, method: AcceptMethod) -> None:
    """`az|b` where no token spells z: a is legal, drawn half of the time, and then ends the request."""
    device = InlineDevice()
    session = GrammarSession(VOCABULARY, matcher(name, GrammarSpec.regex("az|b")))
    drafts = np.random.default_rng(1).integers(0, 2, NUM)  # drawn from q = (.5, .5)
    status = {}
    for draft in (0, 1):
        ring = BitmaskRing(device, VOCABULARY.num_words)
        mask = build_grammar_mask(
            [session], Resolved(HostTree.from_chains([[0, draft]])), ring, device, VOCABULARY
        )
        status[draft] = mask.status
    assert status[0].tolist() == [NodeStatus.LIVE, NodeStatus.ENDED]
    logits = torch.full((2 * NUM, VOCABULARY.vocab_size), -torch.inf)
    logits[:, :2] = 0.0  # the target's law under the mask, (.5, .5)
    tree = HostTree.from_chains([[0, int(draft)] for draft in drafts])
    q = torch.zeros(1, VOCABULARY.vocab_size)
    q[0, :2] = 0.5
    sampled = SampledProposals(np.tile(np.array([-1, 0]), NUM), q)
    requests = [RequestView(str(i), [0], 1, 5, SamplingParams(1.0, seed=i)) for i in range(NUM)]
    statuses = np.concatenate([status[int(draft)] for draft in drafts])
    paths = accept(tree, logits, statuses, requests, method=method, sampled=sampled)
    first = np.where(paths.accept_length > 0, drafts, paths.bonus_token)
    count = int((first == 0).sum())
    assert stats.binomtest(count, NUM, 0.5).pvalue > LEVEL, count
    ended = (first == 0) & (paths.accept_length == 1)
    assert (paths.bonus_token[ended] == -1).all(), "nothing follows a dead end"
