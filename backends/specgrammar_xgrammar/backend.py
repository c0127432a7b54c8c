"""The xgrammar library as a `GrammarBackend`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import tvm_ffi
import xgrammar

from specgrammar.checks import check_choice, check_int
from specgrammar.errors import GrammarCompileError, MatcherError
from specgrammar.grammar.native import BitmaskGuard, check_vocabulary, one_line
from specgrammar.language.frontend import rules_of
from specgrammar.language.source import load_json
from specgrammar.protocols.grammar import BackendFacts, CompiledGrammar, GrammarSpec, Vocabulary
from specgrammar_xgrammar.calls import NativeTable
from specgrammar_xgrammar.ebnf import loops_are_simple, to_ebnf
from specgrammar_xgrammar.facts import FACTS, NATIVE_FACTS
from specgrammar_xgrammar.matcher import ENDS, XGrammarMatcher
from specgrammar_xgrammar.native import compile_natively

_QUICK = 7 * 10**9, 500_000
"""What is compiled without a trial, of JSON Schemas without patterns and of choices: the most characters of
EBNF times ids of the vocabulary, and the most characters. They are nearly free of ambiguity, so the time goes
with the product: 1 s in the worst case found."""
_QUICK_PATTERN = 10**8, 50_000
"""The same where the user's own regex is part of it: `(((a*|b?)){0,9})*` makes many positions of a rule active
at once, so the time goes with the square of the length and more. Of 700 random ones with 49k ids (so up to
2,000 characters) most took 0.1 s, the worst 4 s."""

_LONGEST_NATIVE, _LONGEST_COUNTED = 20_000, 1_000
"""Characters of a JSON Schema that xgrammar's own converter takes without a trial; the same where members are
counted, which takes time with the third power of their number: 0.1 s for 40, 1 s for 80."""

Frontend = Literal["specgrammar", "native"]


@dataclass(frozen=True, eq=False)
class XGrammarCompiled:
    """A `CompiledGrammar` of this backend."""

    spec: GrammarSpec
    weakened: tuple[str, ...]
    native: xgrammar.CompiledGrammar
    num_bytes: int


class XGrammarBackend:
    """A `GrammarBackend` on xgrammar."""

    api_version: Literal[1] = 1
    facts: BackendFacts = FACTS

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        max_threads: int = 4,
        cache_bytes: int = 256 << 20,
        frontend: Frontend = "specgrammar",
    ) -> None:
        """Hand the vocabulary to xgrammar.

        Args:
            vocabulary: special ids are handed over without text, so that none is legal inside a string.
            max_threads: threads that compile one grammar.
            cache_bytes: memory for compiled rules, so that a schema that comes again costs nothing. Grammars
                with rules in a circle are compiled each time, see `loops_are_simple`.
            frontend: who turns a source into rules. `specgrammar`: we do, as for every backend; what comes out
                is strict and quick to fill. `native`: xgrammar's own converters, for rows that are bit by bit
                those of an engine that uses xgrammar alone; more of JSON Schema is dropped, and reported.
        """
        check_vocabulary(vocabulary)
        check_int("xgrammar: max_threads", max_threads, 1, 256)
        check_int("xgrammar: cache_bytes", cache_bytes, 0, 1 << 40)
        check_choice("xgrammar: frontend", frontend, get_args(Frontend))
        self._is_native = frontend == "native"
        if self._is_native:
            self.facts = NATIVE_FACTS
        self._vocabulary = vocabulary
        plain = dataclasses.replace(vocabulary, encode=None)  # a tokenizer cannot be pickled in general
        self._recipe = partial(
            type(self), plain, max_threads=max_threads, cache_bytes=cache_bytes, frontend=frontend
        )
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
        self._guard: BitmaskGuard[Any] = BitmaskGuard(vocabulary, tvm_ffi.from_dlpack)
        stops = frozenset(vocabulary.stop_ids)
        self._legal = bytes(
            ENDS if i in stops else bool(token) and i not in hidden for i, token in enumerate(vocabulary.tokens)
        )
        self._table = NativeTable(self._legal, vocabulary.num_words)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that it was built for."""
        return self._vocabulary

    def compile(self, spec: GrammarSpec) -> XGrammarCompiled:
        """See `GrammarBackend.compile`."""
        try:
            if self._is_native and spec.kind != "choice":  # for which xgrammar has no converter
                native, weakened = compile_natively(spec, self._compiler, self._caching_compiler)
            else:
                rules, weakened = rules_of(spec, self.facts)
                ebnf = to_ebnf(rules)
                compiler = self._caching_compiler if loops_are_simple(ebnf) else self._compiler
                native = compiler.compile_grammar(ebnf)
        except RuntimeError as error:
            raise GrammarCompileError(f"xgrammar: {one_line(error)}") from error
        return XGrammarCompiled(spec, weakened, native, int(native.memory_size_bytes))

    def may_hang(self, spec: GrammarSpec) -> bool:
        """See `SupportsTrial`. A user's own grammar may: of 200 small random ones one took over 10 s."""
        if spec.kind == "grammar":
            return True
        if self._is_native and spec.kind != "choice":
            if spec.kind == "regex" or _has_keyword(spec, "pattern"):
                return True
            counts = _has_keyword(spec, "minProperties") or _has_keyword(spec, "maxProperties")
            return len(spec.source) > (_LONGEST_COUNTED if counts else _LONGEST_NATIVE)
        length = len(to_ebnf(rules_of(spec, self.facts)[0], reach=0))  # variants add a bounded factor
        product, longest = _QUICK_PATTERN if spec.kind == "regex" or _has_keyword(spec, "pattern") else _QUICK
        return length > longest or length * self._vocabulary.vocab_size > product

    def recipe(self) -> Callable[[], XGrammarBackend]:
        """See `SupportsTrial`."""
        return self._recipe

    def matcher(self, compiled: CompiledGrammar) -> XGrammarMatcher:
        """See `GrammarBackend.matcher`."""
        if not isinstance(compiled, XGrammarCompiled):
            raise MatcherError(
                f"xgrammar: the grammar was compiled by another backend ({type(compiled).__name__})"
            )
        native = xgrammar.GrammarMatcher(compiled.native)
        return XGrammarMatcher(native, self._guard, self._legal, self._table, compiled)


def _has_keyword(spec: GrammarSpec, keyword: str) -> bool:
    """Whether a schema has a keyword that begins so, or mentions one; escapes in names are undone first."""
    return spec.kind == "json_schema" and f'"{keyword}' in json.dumps(load_json(spec.source, spec.kind))
