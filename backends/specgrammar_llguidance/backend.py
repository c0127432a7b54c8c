"""The llguidance library as a `GrammarBackend`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from specgrammar.errors import GrammarCompileError, MatcherError
from specgrammar.grammar.native import BitmaskGuard, check_vocabulary, one_line
from specgrammar.language.frontend import rules_of
from specgrammar.language.source import check_source, grammar_syntax
from specgrammar.protocols.grammar import BackendFacts, CompiledGrammar, GrammarSpec, Vocabulary
from specgrammar_llguidance.calls import NativeTable
from specgrammar_llguidance.facts import FACTS
from specgrammar_llguidance.lark import check_lark, to_lark
from specgrammar_llguidance.lexemes import with_lexemes
from specgrammar_llguidance.matcher import LLGuidanceMatcher

_TEXT = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [r"[\x20\x0A\x0D\x09]+", *(f"{_TEXT}{{1,{length}}}" for length in (5, 10, 15, 20, 30)), f"{_TEXT}+"]
"""Sets of tokens whose legality llguidance looks up as a whole where a terminal takes them all. Its default has
two lengths of text (10 and 30), so that in a string with less than 30 characters left 230 us go into looking at
every longer token (128k tokens); with five lengths it is 40."""


@dataclass(frozen=True, eq=False)
class LLGuidanceCompiled:
    """A `CompiledGrammar` of this backend.

    `template` stays at the start of the grammar; matchers are copies of it.
    """

    spec: GrammarSpec
    weakened: tuple[str, ...]
    template: LLMatcher


class _Tokens(TokenizerWrapper):
    """A vocabulary in the shape that `LLTokenizer` reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.special_token_ids = sorted(
            vocabulary.special_ids
            | set(vocabulary.stop_ids)
            | {i for i, token in enumerate(vocabulary.tokens) if not token}
        )
        hidden = frozenset(self.special_token_ids)
        self.tokens = [b"" if i in hidden else token for i, token in enumerate(vocabulary.tokens)]
        self.eos_token_id = vocabulary.stop_ids[0]

    def __call__(self, text: bytes | str) -> list[int]:
        """Only forced tokens would ask for a tokenisation, and `lark.HEADER` switches them off."""
        raise NotImplementedError


class LLGuidanceBackend:
    """A `GrammarBackend` on llguidance."""

    api_version: Literal[1] = 1
    facts: BackendFacts = FACTS

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Hand the vocabulary to llguidance.

        Args:
            vocabulary: special ids are handed over as special, so that none is legal inside a string.
        """
        check_vocabulary(vocabulary)
        self._vocabulary = vocabulary
        self._tokenizer = LLTokenizer(
            _Tokens(vocabulary),
            n_vocab=vocabulary.vocab_size,
            eos_token=list(vocabulary.stop_ids),
            slices=_SLICES,
        )
        self._guard: BitmaskGuard[int] = BitmaskGuard(vocabulary, lambda bitmask: bitmask.ctypes.data)
        self._table = NativeTable(vocabulary.vocab_size, vocabulary.num_words)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that it was built for."""
        return self._vocabulary

    def compile(self, spec: GrammarSpec) -> LLGuidanceCompiled:
        """See `GrammarBackend.compile`."""
        weakened: tuple[str, ...] = ()
        check_source(spec)
        if spec.kind == "grammar" and grammar_syntax(spec.source) == "lark":
            grammar = check_lark(spec.source)
        else:
            rules, weakened = rules_of(spec, self.facts)
            grammar = to_lark(with_lexemes(rules) if spec.kind == "grammar" else rules)
        template = LLMatcher(self._tokenizer, grammar, log_level=0)
        if template.is_error():
            raise GrammarCompileError(f"llguidance: {one_line(template.get_error())}")
        return LLGuidanceCompiled(spec, weakened, template)

    def matcher(self, compiled: CompiledGrammar) -> LLGuidanceMatcher:
        """See `GrammarBackend.matcher`."""
        if not isinstance(compiled, LLGuidanceCompiled):
            raise MatcherError(
                f"llguidance: the grammar was compiled by another backend ({type(compiled).__name__})"
            )
        return LLGuidanceMatcher(compiled.template, self._guard, self._vocabulary, self._table)
