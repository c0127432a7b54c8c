"""What a backend in plain Python needs: what it compiles, and rows written from legal ids."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import GrammarCompileError, MatcherError
from specgrammar.grammar.native import BitmaskGuard, check_filled, check_row
from specgrammar.language.frontend import rules_of
from specgrammar.protocols.grammar import BackendFacts, GrammarSpec, Vocabulary

Bitmask: TypeAlias = NDArray[np.int32]
"""A row of bits for each node of a draft tree, see `GrammarMatcher.fill_bitmask`."""


T = TypeVar("T")


def choices_of(spec: GrammarSpec, facts: BackendFacts) -> list[str]:
    """The strings of a `choice`, each once.

    Raises GrammarCompileError for any other kind of grammar, and for a source that is not a list of strings.
    """
    if spec.kind != "choice":
        raise GrammarCompileError(f"{spec.kind}: this backend compiles {', '.join(sorted(facts.kinds))} only")
    rules_of(spec, facts)
    return list(dict.fromkeys(json.loads(spec.source)))


def own_grammar(compiled: object, kind: type[T]) -> T:
    """A compiled grammar of one's own kind; raises MatcherError for another backend's."""
    if not isinstance(compiled, kind):
        raise MatcherError(
            f"the grammar was compiled by another backend ({type(compiled).__name__}); "
            f"a {kind.__name__} is expected"
        )
    return compiled


def write_row(bitmask: Bitmask, row: int, legal: Iterable[int], vocabulary: Vocabulary) -> None:
    """All that `fill_bitmask` has to do, for a matcher that knows the ids that are legal.

    Args:
        bitmask: as `GrammarMatcher.fill_bitmask` was given it.
        row: the same.
        legal: ids in `[0, vocab_size)`, in any order; one may come up twice.
        vocabulary: the backend's.

    Raises:
        DeadEndError: nothing is legal; the row is all zero.
        MatcherError: `bitmask` or `row` are not to contract.
    """
    check_row(BitmaskGuard(vocabulary, np.asarray).handle(bitmask), row)
    flags = np.zeros(32 * vocabulary.num_words, np.bool_)
    flags[list(legal)] = True
    bitmask[row] = np.packbits(flags, bitorder="little").view("<i4")
    check_filled(bitmask, row)
