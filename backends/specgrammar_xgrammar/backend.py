"""The xgrammar library as a `GrammarBackend`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tvm_ffi
import xgrammar
from numpy.typing import NDArray

from specgrammar.checks import check_int
from specgrammar.errors import DeadEndError, GrammarCompileError, MatcherError
from specgrammar.grammar.native import BitmaskGuard, check_filled, check_vocabulary, one_line, sort_batch
from specgrammar.language.frontend import rules_of
from specgrammar.protocols.grammar import BackendFacts, CompiledGrammar, GrammarSpec, Vocabulary
from specgrammar_xgrammar.ebnf import loops_are_simple, to_ebnf
from specgrammar_xgrammar.facts import FACTS
from specgrammar_xgrammar.matcher import XGrammarMatcher


@dataclass(frozen=True, eq=False)
class XGrammarCompiled:
    """A `CompiledGrammar` of this backend."""

    spec: GrammarSpec
    weakened: tuple[str, ...]
    native: xgrammar.CompiledGrammar


class XGrammarBackend:
    """A `GrammarBackend` on xgrammar; also `SupportsBatchFill`."""

    api_version: Literal[1] = 1
    facts: BackendFacts = FACTS

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        max_threads: int = 4,
        cache_bytes: int = 256 << 20,
    ) -> None:
        """Hand the vocabulary to xgrammar.

        Args:
            vocabulary: special ids are handed over without text, so that none is legal inside a string.
            max_threads: threads that compile one grammar, and that fill the rows of one batch.
            cache_bytes: memory for compiled rules, so that a schema that comes again costs nothing. Grammars
                with rules in a circle are compiled each time, see `loops_are_simple`.
        """
        check_vocabulary(vocabulary)
        check_int("xgrammar: max_threads", max_threads, 1, 256)
        check_int("xgrammar: cache_bytes", cache_bytes, 0, 1 << 40)
        self._vocabulary = vocabulary
        hidden = vocabulary.special_ids | set(vocabulary.stop_ids)
        tokens = [b"" if i in hidden else token for i, token in enumerate(vocabulary.tokens)]
        # Ids up to the end of the last word are unused, so that the library writes their bits as 0.
        tokens += [b""] * (32 * vocabulary.num_words - len(tokens))
        info = xgrammar.TokenizerInfo(
            tokens,
            xgrammar.VocabType.RAW,
            vocab_size=len(tokens),
            stop_token_ids=list(vocabulary.stop_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=max_threads, cache_enabled=False)
        self._caching_compiler = (
            xgrammar.GrammarCompiler(info, max_threads=max_threads, cache_limit_bytes=cache_bytes)
            if cache_bytes
            else self._compiler
        )
        self._batch = xgrammar.BatchGrammarMatcher(min(max_threads, os.cpu_count() or 1))
        self._guard: BitmaskGuard[Any] = BitmaskGuard(vocabulary, tvm_ffi.from_dlpack)
        stops = frozenset(vocabulary.stop_ids)
        self._legal = bytes(
            i in stops or (bool(token) and i not in hidden) for i, token in enumerate(vocabulary.tokens)
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that it was built for."""
        return self._vocabulary

    def compile(self, spec: GrammarSpec) -> XGrammarCompiled:
        """See `GrammarBackend.compile`."""
        rules, weakened = rules_of(spec, self.facts)
        ebnf = to_ebnf(rules)
        compiler = self._caching_compiler if loops_are_simple(ebnf) else self._compiler
        try:
            return XGrammarCompiled(spec, weakened, compiler.compile_grammar(ebnf))
        except RuntimeError as error:
            raise GrammarCompileError(f"xgrammar: {one_line(error)}") from error

    def matcher(self, compiled: CompiledGrammar) -> XGrammarMatcher:
        """See `GrammarBackend.matcher`."""
        if not isinstance(compiled, XGrammarCompiled):
            raise MatcherError(
                f"xgrammar: the grammar was compiled by another backend ({type(compiled).__name__})"
            )
        return XGrammarMatcher(xgrammar.GrammarMatcher(compiled.native), self._guard, self._legal)

    def fill_bitmasks(
        self, matchers: Sequence[XGrammarMatcher], bitmask: NDArray[np.int32], rows: Sequence[int]
    ) -> Mapping[int, Exception]:
        """See `SupportsBatchFill`; the native batch call raises for all if one matcher fails."""
        handle = self._guard.handle(bitmask)
        live, failures = sort_batch(matchers, bitmask, rows)
        try:
            self._batch.batch_fill_next_token_bitmask(
                [matchers[i].native for i in live], handle, [rows[i] for i in live]
            )
        except RuntimeError:
            return failures | self._one_by_one(live, matchers, bitmask, rows)
        for i in live:
            try:
                check_filled(bitmask, rows[i])
            except DeadEndError as error:
                failures[i] = error
        return failures

    def _one_by_one(
        self,
        live: Sequence[int],
        matchers: Sequence[XGrammarMatcher],
        bitmask: NDArray[np.int32],
        rows: Sequence[int],
    ) -> dict[int, Exception]:
        failures: dict[int, Exception] = {}
        for i in live:
            try:
                matchers[i].fill_bitmask(bitmask, rows[i])
            except (DeadEndError, MatcherError) as error:
                failures[i] = error
        return failures
