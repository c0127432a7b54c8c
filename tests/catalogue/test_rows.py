"""Which row is for which node, and what a row without a grammar says."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from specgrammar.errors import ConfigError, MatcherError, SpecGrammarError
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.dense import fill_dense
from specgrammar.grammar.staging import Resolved
from specgrammar.protocols.grammar import GrammarMatcher, GrammarSpec
from specgrammar.testing.toy_target import NUM_COLUMNS
from specgrammar.testing.toys import STOP, VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.catalogue.naive import Row, chain_rows, everything, greedy_path, masked, row_behind
from tests.catalogue.ours import (
    AB,
    DEVICE,
    FREE,
    LIVE,
    ONE,
    PADDING,
    PAIRS,
    REJECTED,
    TWO,
    A,
    B,
    C,
    accepted,
    every_backend,
    ids,
    legal_behind,
    mask_of,
    matcher,
    replayed,
    rows_for,
    session_of,
    step,
    tree_of,
    wanting,
)

THREE_PAIRS = GrammarSpec.regex("(ab){3}")
LETTERS = [GrammarSpec.regex(f"{letter}+") for letter in "abc"]


@every_backend
def test_failure_13_rows_are_misaligned_after_drafts_are_trimmed(name: str) -> None:
    sessions = [session_of(spec, name=name) for spec in LETTERS]
    made = HostTree.from_chains([[A, token, token] for token in (A, B, C)])
    rows = rows_for(9)
    fill_dense(sessions, made, rows)
    used = [3, 1, 3]  # the worker has cut the second request's drafts
    assert ids(rows[sum(used[:2])]) == [B, STOP], "the third request's first row, counted anew, is another's"

    logits = torch.zeros(sum(used), NUM_COLUMNS)
    with mask_of(sessions, made) as mask:
        mask.upload()
        with pytest.raises(SpecGrammarError, match="expected a row for each of 9 nodes"):
            mask.apply(logits)
    cut = HostTree.from_parents(
        made.cu_nodes, np.array([A, A, A, A, -1, -1, A, C, C]), np.array([-1, 0, 1, -1, -1, -1, -1, 0, 1])
    )
    mask = mask_of(sessions, cut)
    assert mask.status.tolist() == [LIVE] * 3 + [LIVE, PADDING, PADDING] + [LIVE] * 3
    assert ids(mask.bitmask[mask.row_of_node[6]]) == [C]
    assert step(sessions, cut, torch.zeros(9, NUM_COLUMNS))[2][0] == C


@every_backend
def test_failure_14_fewer_drafts_than_announced(name: str) -> None:
    num_drafts, drafts = 3, [[AB, AB, AB], [], [AB]]
    rows = [row for chain in drafts for row in chain_rows(replayed(PAIRS, [AB], name), chain)]
    logits = np.zeros((len(drafts) * (1 + num_drafts), VOCABULARY.vocab_size))
    legal = np.unpackbits(np.stack(rows).view(np.uint8), axis=1, bitorder="little")[:, : VOCABULARY.vocab_size]
    with pytest.raises(ValueError, match="broadcast"):
        np.where(legal, logits, -np.inf)

    sessions = [session_of(PAIRS, [AB], name) for _ in drafts]
    tree = HostTree.from_chains([[AB, *chain] for chain in drafts])
    outputs = step(sessions, tree, wanting(AB, AB, AB, AB, STOP, AB, ONE))
    assert outputs[0] == [AB] * 5
    assert outputs[1] == [AB, STOP]
    assert outputs[2] == [AB, AB, A]


def flat_rows(state: GrammarMatcher, tokens: list[int]) -> list[Row]:
    """The rows of a tree's nodes, taken as a chain: each behind the node before it."""
    return chain_rows(state, tokens[1:])


@every_backend
def test_failure_15_a_tree_is_treated_as_a_chain(name: str) -> None:
    tokens, parents = [AB, A, AB, B], [-1, 0, 0, 1]
    naive = flat_rows(replayed(THREE_PAIRS, [AB], name), tokens)
    assert ids(naive[2]) == ids(everything()), "a sibling's token is not legal behind its sibling"

    rows = rows_for(4)
    status = fill_dense([session_of(THREE_PAIRS, [AB], name)], tree_of(tokens, parents), rows)
    assert status.tolist() == [LIVE] * 4
    for node, path in enumerate(([], [A], [AB], [A, B])):
        assert ids(rows[node]) == legal_behind(THREE_PAIRS, [AB, *path], name)


@every_backend
def test_failure_16_a_path_of_the_worker_has_no_mask(name: str) -> None:
    def naive(drafts: list[int], logits: torch.Tensor) -> list[int]:
        if not drafts:  # nothing to verify: the plain sampler
            return [int(logits[0].argmax())]
        return greedy_path(masked(logits, chain_rows(replayed(PAIRS, [AB], name), drafts)), drafts)

    assert naive([AB], wanting(ONE, ONE)) == [A]
    assert naive([], wanting(ONE)) == [ONE]

    for drafts, expected in (([], [A]), ([AB], [A]), ([A, B], [A, B, A])):
        session = session_of(PAIRS, [AB], name)
        (output,) = step([session], HostTree.from_chains([[AB, *drafts]]), wanting(*[ONE] * (1 + len(drafts))))
        assert output == [AB, *expected], "no drafts are a tree of one node, and go the same way"


@every_backend
def test_failure_18_unconstrained_rows_are_zero(name: str) -> None:
    buffer = rows_for(2)  # zeroed, and filled for the requests that have a grammar
    buffer[0] = row_behind(matcher(PAIRS, name))
    naive = masked(wanting(AB, ONE), list(buffer))[:, : VOCABULARY.vocab_size].softmax(dim=-1)
    assert naive[1].isnan().all()

    sessions = [session_of(PAIRS, name=name), session_of(None)]
    rows = rows_for(2)
    assert fill_dense(sessions, HostTree.roots([A, A]), rows).tolist() == [LIVE, FREE]
    assert ids(rows[1]) == ids(everything())
    assert step(sessions, HostTree.roots([A, A]), wanting(AB, ONE)) == [[AB], [ONE]]


def fill_by_address(state: GrammarMatcher, bitmask: Row, row: int) -> None:
    """As native code does that is given where a buffer begins and how wide a row is."""
    memory = bitmask if bitmask.base is None else bitmask.base
    memory.reshape(-1)[row * bitmask.shape[1] : (row + 1) * bitmask.shape[1]] = row_behind(state)


@every_backend
def test_failure_19_strides_are_ignored(name: str) -> None:
    memory = rows_for(8)
    every_second = memory[::2]
    fill_by_address(matcher(PAIRS, name), every_second, 1)
    assert ids(memory[1]) == [A, AB]
    assert ids(every_second[1]) == [], "written to one row, read from another"

    with pytest.raises(MatcherError, match="contiguous"):
        matcher(PAIRS, name).fill_bitmask(every_second, 1)
    with pytest.raises(ConfigError, match="C-contiguous"):
        fill_dense([session_of(PAIRS, name=name)], HostTree.roots([A]), every_second)
    wide = torch.zeros(6, NUM_COLUMNS)
    mask = mask_of([session_of(PAIRS, name=name)] * 3, HostTree.roots([A] * 3))
    mask.upload()
    mask.apply(wide[::2])
    assert [torch.isfinite(row).nonzero().flatten().tolist() for row in wide[::2]] == [[A, AB]] * 3
    assert torch.isfinite(wide[1::2]).all()


@every_backend
def test_failure_20_the_mask_is_narrower_than_the_padded_logits(name: str) -> None:
    padding = NUM_COLUMNS - 1
    naive = masked(wanting(padding), [row_behind(matcher(PAIRS, name))])
    assert int(naive.argmax()) == padding >= VOCABULARY.vocab_size, "a token that does not exist"

    sessions = [session_of(PAIRS, name=name), session_of(None)]
    outputs = step(sessions, HostTree.roots([A, A]), wanting(padding, padding))
    assert outputs == [[A], [A]]


@every_backend
def test_failure_45_the_bonus_token_is_drawn_from_an_unmasked_row(name: str) -> None:
    drafts, logits = [AB, AB], wanting(AB, AB, ONE)
    rows = chain_rows(matcher(PAIRS, name), drafts)[: len(drafts)]  # a row for each draft
    assert greedy_path(masked(logits, rows), drafts) == [AB, AB, ONE]

    session = session_of(PAIRS, name=name)
    assert step([session], HostTree.from_chains([[A, *drafts]]), logits) == [[AB, AB, A]]


@every_backend
def test_failure_46_a_rejected_node_is_accepted_because_its_row_allows_everything(name: str) -> None:
    drafts, wanted = [AB, ONE, TWO], wanting(AB, ONE, TWO, ONE)
    rows = chain_rows(matcher(PAIRS, name), drafts)
    assert [ids(row) for row in rows[2:]] == [ids(everything())] * 2
    verified = greedy_path(wanted, drafts)  # drafts against the model, as their rows are the grammar's business
    naive = [*verified[:-1], int(masked(wanted, rows)[len(verified) - 1].argmax())]
    assert naive == [AB, ONE, TWO, ONE]

    tree = HostTree.from_chains([[A, *drafts]])
    mask = mask_of([session_of(PAIRS, name=name)], tree)
    assert mask.status.tolist() == [LIVE, LIVE, REJECTED, REJECTED]
    paths = accepted(tree, wanted, mask.status)  # even if the logits were never masked
    assert paths.accept_length.tolist() == [1]
    assert step([session_of(PAIRS, name=name)], tree, wanted) == [[AB, A]]


@every_backend
def test_failure_47_siblings_share_the_row_of_the_first_one(name: str) -> None:
    tokens, parents, depths = [AB, A, AB], [-1, 0, 0], [0, 1, 1]
    row_of_depth = chain_rows(replayed(PAIRS, [AB], name), [A])
    naive = [row_of_depth[depth] for depth in depths]
    assert ids(naive[2]) == [B] != legal_behind(PAIRS, [AB, AB], name)

    mask = mask_of([session_of(PAIRS, [AB], name)], tree_of(tokens, parents))
    assert [ids(mask.bitmask[row]) for row in mask.row_of_node] == [
        legal_behind(PAIRS, path, name) for path in ([AB], [AB, A], [AB, AB])
    ]
    session = session_of(PAIRS, [AB], name)
    (output,) = step([session], tree_of(tokens, parents), wanting(AB, B, STOP))
    assert output == [AB, AB, STOP]


@every_backend
def test_failure_57_a_row_is_left_over_from_the_step_before(name: str) -> None:
    persistent = np.stack([everything(), everything()])
    persistent[0] = row_behind(matcher(PAIRS, name))  # one step; in the next the request in this row is another
    naive = masked(wanting(ONE, ONE), list(persistent))
    assert int(naive[0].argmax()) == A, "a request without a grammar under somebody else's"

    rows = rows_for(2)
    ring = BitmaskRing(DEVICE, VOCABULARY.num_words, num_slots=1)
    for spec, compact, text in ((PAIRS, 1, "a"), (None, 0, "1")):
        session, tree = session_of(spec, name=name), HostTree.roots([A])
        fill_dense([session], tree, rows)
        assert ids(rows[0]) == (ids(everything()) if spec is None else [A, AB])
        mask = build_grammar_mask([session], Resolved(tree), ring, DEVICE, VOCABULARY)
        assert mask.num_rows == compact
        mask.upload()
        logits = wanting(ONE)
        mask.apply(logits)
        assert re.match(text, VOCABULARY.tokens[int(logits.argmax())].decode())
