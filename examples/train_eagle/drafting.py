"""Drafting with a head against answers that are known: how many tokens each verify step would commit.

What a greedy target accepts depends on its greedy answer alone, so no target is run: at each step the head
grows a tree from the committed tokens and the target's features, the answer says which path is accepted and
what the bonus token is, and the next step begins behind it. It is the same head, state and tree growth that
an engine drives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specgrammar.protocols.grammar import GrammarMatcher
from specgrammar.spec.eagle.build import BuiltTrees
from specgrammar.spec.eagle.growth import Growth
from specgrammar.spec.eagle.head import DraftVocabulary, EagleHead
from specgrammar.spec.eagle.state import HeadState


@dataclass(frozen=True)
class Shape:
    """A draft tree: `steps` deep, `topk` nodes expanded per level, `num_nodes` verified, the root included."""

    topk: int
    steps: int
    num_nodes: int


CHAIN = Shape(1, 4, 5)
TREE = Shape(4, 4, 16)


@dataclass(frozen=True)
class Known:
    """A prompt and the target's answer.

    Attributes:
        tokens: prompt and answer, int64.
        prompt_length: tokens of the prompt.
        features: the target's, of all tokens but the last, `[n - 1, feature_size]`.
        own_ids: ids that may be drafted beside the head's own: the prompt's and the schema's.
        matcher: at the start of the answer's grammar, if drafts are to follow it; it is moved.
    """

    tokens: Tensor
    prompt_length: int
    features: Tensor
    own_ids: Tensor
    matcher: GrammarMatcher | None = None


@dataclass(frozen=True)
class Steps:
    """What became of one answer."""

    num_tokens: int
    num_steps: int


def count_steps(head: EagleHead, known: Sequence[Known], shape: Shape) -> list[Steps]:
    """Draft all answers side by side, each from its first token to its last."""
    vocabulary = head.vocabulary(torch.cat([one.own_ids for one in known]))
    is_own = torch.stack(
        [torch.isin(vocabulary.ids, torch.cat((head.draft_ids, one.own_ids))) for one in known]
    )
    state = HeadState(head, len(known), shape.topk * (shape.steps - 1))
    roots = [one.prompt_length - 1 for one in known]
    num_steps = [0] * len(known)
    rows = list(range(len(known)))
    while rows:
        starts = [state.length(row) for row in rows]
        output = state.extend(
            rows,
            torch.cat(
                [known[row].tokens[start + 1 : roots[row] + 1] for row, start in zip(rows, starts, strict=True)]
            ),
            torch.cat(
                [known[row].features[start : roots[row]] for row, start in zip(rows, starts, strict=True)]
            ),
            [roots[row] - start for row, start in zip(rows, starts, strict=True)],
        )
        matchers = [known[row].matcher for row in rows]
        growth = _grow(state, head, rows, output, shape, vocabulary, is_own[rows], matchers)
        last = torch.stack([known[row].tokens[roots[row]] for row in rows])
        trees = growth.build(last, shape.num_nodes)
        for i, row in enumerate(rows):
            answer = known[row].tokens[roots[row] + 1 :].tolist()
            committed = answer[: _accepted(trees, i, answer) + 1]
            matcher = known[row].matcher
            if matcher is not None:
                matcher.accept_prefix(committed)
            roots[row] += len(committed)
            num_steps[row] += 1
        rows = [row for row in rows if roots[row] < len(known[row].tokens) - 1]
    return [
        Steps(len(one.tokens) - one.prompt_length, steps) for one, steps in zip(known, num_steps, strict=True)
    ]


def _grow(
    state: HeadState,
    head: EagleHead,
    rows: Sequence[int],
    output: Tensor,
    shape: Shape,
    vocabulary: DraftVocabulary,
    is_own: Tensor,
    matchers: Sequence[GrammarMatcher | None],
) -> Growth:
    """Level by level, as `EagleProducer` does."""
    logprobs = _logprobs(head, output[:, None], vocabulary, is_own, matchers, [[[]] for _ in rows])
    scores, index = logprobs[:, 0].topk(shape.topk)
    growth = Growth(vocabulary.ids[index], scores)
    hidden = output[:, None].expand(-1, shape.topk, -1)
    for _ in range(shape.steps - 1):
        output = state.expand(rows, growth.frontier_tokens, hidden, growth.ancestors)
        paths = [_paths(growth, i) for i in range(len(rows))]
        scores, index = _logprobs(head, output, vocabulary, is_own, matchers, paths).topk(shape.topk)
        growth.grow(vocabulary.ids[index], scores)
        hidden = growth.at_parents(output)
    return growth


def _logprobs(
    head: EagleHead,
    output: Tensor,
    vocabulary: DraftVocabulary,
    is_own: Tensor,
    matchers: Sequence[GrammarMatcher | None],
    paths: Sequence[Sequence[list[int]]],
) -> Tensor:
    """Log-probabilities of the children of nodes, `[b, q, vocabulary]`; of legal ones if there is a matcher."""
    logits = head.logits(output, vocabulary).float()
    allowed = is_own[:, None].expand_as(logits)
    if any(matcher is not None for matcher in matchers):
        width = head.config.vocab_size
        legal = torch.from_numpy(_legal(matchers, paths, width))[:, vocabulary.ids].view(logits.shape)
        allowed = allowed & legal
    logprobs = logits.masked_fill(~allowed, float("-inf")).log_softmax(-1)
    return logprobs.nan_to_num(nan=float("-inf"), neginf=float("-inf"))


def _legal(
    matchers: Sequence[GrammarMatcher | None], paths: Sequence[Sequence[list[int]]], vocab_size: int
) -> NDArray[np.bool_]:
    """Which tokens may follow each path; none where a path is illegal or has ended."""
    bits: NDArray[np.int32] = np.zeros((sum(map(len, paths)), (vocab_size + 31) // 32), np.int32)
    row = 0
    for matcher, own in zip(matchers, paths, strict=True):
        for path in own:
            if matcher is None:
                bits[row] = -1
            else:
                num_moved = matcher.accept_prefix(path)
                if num_moved == len(path) and not matcher.finished:
                    matcher.fill_bitmask(bits, row)
                matcher.rollback(num_moved)
            row += 1
    unpacked = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, :vocab_size]
    return unpacked.astype(np.bool_)


def _paths(growth: Growth, i: int) -> list[list[int]]:
    """The tokens from below the root down to each node of a request's frontier."""
    tokens, parents, _ = (part[i].tolist() for part in growth.candidates())
    found = []
    for node in growth.frontier[i].tolist():
        path: list[int] = []
        while node >= 0:
            path.append(tokens[node])
            node = parents[node]
        found.append(path[::-1])
    return found


def _accepted(trees: BuiltTrees, i: int, answer: Sequence[int]) -> int:
    """How many tokens of the answer the verified nodes spell."""
    tokens, parents = trees.tokens[i].tolist(), trees.parents[i].tolist()
    children = {(parents[node], tokens[node]): node for node in range(1, len(tokens)) if tokens[node] >= 0}
    node = length = 0
    while length < len(answer) and (node, answer[length]) in children:
        node = children[node, answer[length]]
        length += 1
    return length
