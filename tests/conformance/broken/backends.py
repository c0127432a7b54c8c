"""Backends that compile wrongly, or are not what they say."""

from __future__ import annotations

import dataclasses
import json
import time
import weakref
from typing import Any

import numpy as np

from specgrammar.errors import DeadEndError, GrammarCompileError, MatcherError
from specgrammar.protocols.grammar import BackendFacts, CompiledGrammar, GrammarSpec
from specgrammar.testing.checks.backend import (
    check_broken_grammars_are_refused,
    check_foreign_grammars_are_refused,
    check_grammars_are_told_apart,
    check_it_equals_the_reference,
    check_it_says_what_it_is,
    check_matchers_outlive_the_rest,
    check_no_keyword_is_dropped_silently,
    check_separators_are_those_asked_for,
    check_threads_do_not_meet,
    check_what_is_declared_compiles,
    check_what_is_not_declared_is_refused,
)
from specgrammar.testing.checks.matcher import check_long_histories_can_be_undone
from specgrammar.testing.earley import EarleySet
from specgrammar.testing.reference import ReferenceBackend, ReferenceCompiled, ReferenceMatcher
from tests.conformance.broken.rejected import rejected


def facts_with(**changes: Any) -> BackendFacts:
    """The reference's facts, but for some."""
    return dataclasses.replace(ReferenceBackend.facts, **changes)


class FactsOfInstance(ReferenceBackend):
    """What a user lists before a backend is built is not known."""

    def __init__(self, vocabulary: Any) -> None:
        super().__init__(vocabulary)
        self.__dict__["facts"] = facts_with(max_rollback=8)


class NextVersion(ReferenceBackend):
    api_version: Any = 2


class DeclaresLark(ReferenceBackend):
    facts = facts_with(grammar_syntaxes=frozenset({"ebnf", "lark"}))


class CompilesMoreThanItSays(ReferenceBackend):
    facts = facts_with(kinds=frozenset({"choice"}), grammar_syntaxes=frozenset())


class SpecIsRewritten(ReferenceBackend):
    """A choice is compiled by way of a regex, and the regex is what it says it was."""

    def compile(self, spec: GrammarSpec) -> ReferenceCompiled:
        if spec.kind == "choice":
            spec = GrammarSpec.regex("|".join(json.loads(spec.source)))
        return super().compile(spec)


class BrokenIsFree(ReferenceBackend):
    """What does not compile is not constrained."""

    def compile(self, spec: GrammarSpec) -> ReferenceCompiled:
        try:
            return super().compile(spec)
        except GrammarCompileError:
            return dataclasses.replace(super().compile(GrammarSpec.regex(r"[\s\S]*")), spec=spec)


class BrokenIsNone(ReferenceBackend):
    def compile(self, spec: GrammarSpec) -> Any:
        try:
            return super().compile(spec)
        except GrammarCompileError:
            return None


class BrokenJsonEscapes(ReferenceBackend):
    def compile(self, spec: GrammarSpec) -> ReferenceCompiled:
        if spec.kind in ("json_schema", "choice"):
            json.loads(spec.source)
        return super().compile(spec)


class EmptyChoiceIsEmptyText(ReferenceBackend):
    def compile(self, spec: GrammarSpec) -> ReferenceCompiled:
        return super().compile(GrammarSpec.choice([""]) if spec == GrammarSpec.choice([]) else spec)


class DropsKeywords(ReferenceBackend):
    """As xgrammar's own converter does."""

    facts = facts_with(unenforced_keywords=frozenset())

    def compile(self, spec: GrammarSpec) -> ReferenceCompiled:
        weak = dataclasses.replace(spec, allow_weakened=True)
        made = ReferenceBackend.compile(ReferenceBackend(self.vocabulary), weak)
        return dataclasses.replace(made, spec=spec, weakened=())


class IgnoresItsFacts(DropsKeywords):
    facts = ReferenceBackend.facts


class ReportsNothing(ReferenceBackend):
    def compile(self, spec: GrammarSpec) -> ReferenceCompiled:
        return dataclasses.replace(super().compile(spec), weakened=())


class Caching(ReferenceBackend):
    """Keeps what it compiled by `key`."""

    def compile(self, spec: GrammarSpec) -> ReferenceCompiled:
        cache: dict[Any, ReferenceCompiled] = self.__dict__.setdefault("_cache", {})
        key = self.key(spec)
        if key not in cache:
            cache[key] = super().compile(spec)
        return dataclasses.replace(cache[key], spec=spec)

    def key(self, spec: GrammarSpec) -> Any:
        return spec


class CachedBySource(Caching):
    def key(self, spec: GrammarSpec) -> Any:
        return spec.source, spec.whitespace, spec.allow_weakened


class CachedWithoutWhitespace(Caching):
    def key(self, spec: GrammarSpec) -> Any:
        return spec.kind, spec.source, spec.allow_weakened


class CachedWithoutLeniency(Caching):
    def key(self, spec: GrammarSpec) -> Any:
        return spec.kind, spec.source, spec.whitespace


class TakesForeignGrammars(ReferenceBackend):
    """Whatever it is given is compiled again."""

    def matcher(self, compiled: Any) -> ReferenceMatcher:
        return super().matcher(self.compile(getattr(compiled, "spec", GrammarSpec.regex(".*"))))


class ForeignGrammarsEscape(ReferenceBackend):
    def matcher(self, compiled: Any) -> ReferenceMatcher:
        return self.matcher_class(compiled.parser, self.vocabulary)


class BoundedMatcher(ReferenceMatcher):
    """Keeps its last sixteen states."""

    def accept(self, token: int) -> bool:
        accepted = super().accept(token)
        del self._history[:-17]
        return accepted


class DeeperThanItIs(ReferenceBackend):
    facts = facts_with(max_rollback=64)
    matcher_class = BoundedMatcher


class WeakMatcher(ReferenceMatcher):
    """Holds what is native by a reference that does not keep it alive."""

    held: Any = None

    def _after(self, token: int) -> EarleySet | None:
        if self.held is not None and self.held() is None:
            raise MatcherError("use after free")
        return super()._after(token)


class DiesWithItsGrammar(ReferenceBackend):
    matcher_class = WeakMatcher

    def matcher(self, compiled: CompiledGrammar) -> ReferenceMatcher:
        made = super().matcher(compiled)
        made.__dict__["held"] = weakref.ref(compiled)
        return made


_scratch = np.zeros(64, np.bool_)


class ScratchMatcher(ReferenceMatcher):
    """Works out its row in a buffer that all matchers share."""

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        _scratch[:] = False
        for token in range(self._vocabulary.vocab_size):
            _scratch[token] = self._after(token) is not None
            time.sleep(0)
        super().fill_bitmask(bitmask, row)
        bitmask[row] = np.packbits(_scratch[: 32 * bitmask.shape[1]], bitorder="little").view("<i4")
        if not bitmask[row].any():
            raise DeadEndError("nothing is legal")


class EagerMatcher(ReferenceMatcher):
    """Ends as soon as it may: behind "a" of "a" or "ab", only the stop token is legal."""

    def _after(self, token: int) -> EarleySet | None:
        ends = self._history[-1].accepts and token not in self._vocabulary.stop_ids
        return None if ends else super()._after(token)


class AnySpacing(ReferenceBackend):
    """JSON is always flexible, whatever was asked for."""

    def compile(self, spec: GrammarSpec) -> ReferenceCompiled:
        loose = dataclasses.replace(spec, whitespace="flexible")
        return dataclasses.replace(super().compile(loose), spec=spec)


_KEYWORD = check_no_keyword_is_dropped_silently
_BROKEN = check_broken_grammars_are_refused
_APART = check_grammars_are_told_apart
_FOREIGN = check_foreign_grammars_are_refused

BROKEN_BACKENDS = [
    rejected(fault, make, check, finds)
    for fault, make, check, finds in (
        ("facts of the instance alone", FactsOfInstance, check_it_says_what_it_is, "facts of the backend is"),
        ("made for another version", NextVersion, check_it_says_what_it_is, "api_version of the class is 2"),
        (
            "a syntax is declared, not there",
            DeclaresLark,
            check_what_is_declared_compiles,
            "start: .* raised Gr",
        ),
        (
            "kinds are compiled that are not declared",
            CompilesMoreThanItSays,
            check_what_is_not_declared_is_refused,
            r"compile\(regex, 'a'\), not declared, raised nothing",
        ),
        (
            "`spec` is another one",
            SpecIsRewritten,
            check_what_is_declared_compiles,
            "spec of the compiled choice",
        ),
        ("a broken grammar is no constraint", BrokenIsFree, _BROKEN, "broken, raised nothing"),
        ("a broken grammar is None", BrokenIsNone, _BROKEN, "broken, raised nothing"),
        ("a broken grammar raises what JSON does", BrokenJsonEscapes, _BROKEN, "raised JSONDecodeError"),
        (
            "no choice is the empty text",
            EmptyChoiceIsEmptyText,
            _BROKEN,
            r"choice, '\[\]'\), broken, raised noth",
        ),
        ("keywords are dropped silently", DropsKeywords, _KEYWORD, "'not' is dropped silently"),
        (
            "keywords of its facts are not refused",
            IgnoresItsFacts,
            _KEYWORD,
            "facts.unenforced_keywords has 'not'",
        ),
        (
            "weakened keywords are not reported",
            ReportsNothing,
            _KEYWORD,
            r"weakened of .* is \(\); it was refused",
        ),
        (
            "compiled grammars are kept by source",
            CachedBySource,
            _APART,
            "texts of .*where other grammars were",
        ),
        (
            "compiled grammars are kept without whitespace",
            CachedWithoutWhitespace,
            _APART,
            "texts of .*where other grammars were",
        ),
        (
            "compiled grammars are kept without leniency",
            CachedWithoutLeniency,
            _APART,
            "once it was allowed to weaken it, raised nothing",
        ),
        (
            "another backend's grammar is taken",
            TakesForeignGrammars,
            _FOREIGN,
            r"_Foreign\), .* raised nothing",
        ),
        ("another backend's grammar escapes", ForeignGrammarsEscape, _FOREIGN, "raised AttributeError"),
        (
            "`max_rollback` is less than declared",
            DeeperThanItIs,
            check_long_histories_can_be_undone,
            r"max_rollback is 64|rollback\(\d+\): 16 tokens",
        ),
        (
            "matchers die with their grammar",
            DiesWithItsGrammar,
            check_matchers_outlive_the_rest,
            "use after free",
        ),
        ("threads share a buffer", ScratchMatcher, check_threads_do_not_meet, "with 4 threads"),
        (
            "it ends as soon as it may",
            EagerMatcher,
            check_it_equals_the_reference,
            "the reference's are|accept",
        ),
        (
            "whitespace is not what was asked for",
            AnySpacing,
            check_separators_are_those_asked_for,
            "with spaced separators allows .* is True; expected False",
        ),
    )
]
