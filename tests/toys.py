"""The installed backends over the kit's small vocabulary: what the tests of the core walk on."""

from __future__ import annotations

from functools import cache

import numpy as np

from specgrammar.protocols.grammar import (
    CompiledGrammar,
    GrammarBackend,
    GrammarMatcher,
    GrammarSpec,
    NodeStatus,
)
from specgrammar.registry import BACKENDS, create
from specgrammar.testing.toys import STOP, VOCABULARY

BACKEND_NAMES = ("xgrammar", "llguidance")


@cache
def backend(name: str) -> GrammarBackend:
    """The backend of a name over `VOCABULARY`."""
    made: GrammarBackend = create(BACKENDS, name, VOCABULARY)
    return made


@cache
def compiled(name: str, spec: GrammarSpec) -> CompiledGrammar:
    """A grammar compiled once."""
    return backend(name).compile(spec)


def matcher(name: str, spec: GrammarSpec) -> GrammarMatcher:
    """A fresh matcher."""
    return backend(name).matcher(compiled(name, spec))


def row_of(matcher: GrammarMatcher) -> list[int]:
    """The row that a matcher fills, as a list of words."""
    row = np.zeros((1, VOCABULARY.num_words), np.int32)
    matcher.fill_bitmask(row, 0)
    words: list[int] = row[0].tolist()
    return words


def legal_ids(matcher: GrammarMatcher) -> list[int]:
    """The ids that a matcher allows next."""
    words = row_of(matcher)
    return [i for i in range(VOCABULARY.vocab_size) if words[i // 32] >> (i % 32) & 1]


def expected_status(spec: GrammarSpec, name: str, prefix: list[int], path: list[int]) -> tuple[int, list[int]]:
    """Status and row of a node by replaying its whole path on a fresh matcher; an empty row if it has none."""
    fresh = matcher(name, spec)
    for token in prefix:
        assert fresh.accept(token)
    for index, token in enumerate(path):
        if not 0 <= token < VOCABULARY.vocab_size or not fresh.accept(token):
            return int(NodeStatus.REJECTED), []
        if token == STOP:
            last = index == len(path) - 1
            return int(NodeStatus.ENDED if last else NodeStatus.REJECTED), []
    return int(NodeStatus.LIVE), row_of(fresh)
