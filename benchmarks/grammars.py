"""Everything that the columns compile for one vocabulary: our backends, and the libraries by themselves."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import xgrammar
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import GrammarSpec, Vocabulary
from specgrammar_llguidance import LLGuidanceBackend
from specgrammar_xgrammar import XGrammarBackend

BACKENDS = ("xgrammar", "llguidance")


@dataclass
class Grammars:
    """Compiled grammars of one vocabulary; each is compiled when it is first asked for and kept.

    The libraries by themselves get the same vocabulary without its special tokens, and the same schema
    through their own converters, with the separators that ours use.
    """

    vocabulary: Vocabulary
    _compiled: dict[tuple[str, str], Any] = field(default_factory=dict)

    @cached_property
    def backends(self) -> dict[str, Any]:
        """Our backends by name."""
        num_cpus = os.cpu_count() or 1
        return {
            "xgrammar": XGrammarBackend(self.vocabulary, max_threads=num_cpus),
            "llguidance": LLGuidanceBackend(self.vocabulary),
        }

    def compiled(self, backend: str, schema: str) -> Any:
        """The schema compiled by one of our backends."""
        key = backend, schema
        if key not in self._compiled:
            self._compiled[key] = self.backends[backend].compile(GrammarSpec("json_schema", schema))
        return self._compiled[key]

    def session(self, backend: str, schema: str, committed: Iterable[int]) -> GrammarSession:
        """A request that has committed these tokens."""
        matcher = self.backends[backend].matcher(self.compiled(backend, schema))
        session = GrammarSession(self.vocabulary, matcher)
        session.commit(list(committed))
        assert session.finish is None, session.error
        return session

    def xgrammar_alone(self, schema: str) -> xgrammar.CompiledGrammar:
        """The schema through xgrammar's own `compile_json_schema`."""
        key = "xgrammar alone", schema
        if key not in self._compiled:
            self._compiled[key] = self._compiler.compile_json_schema(schema, any_whitespace=False)
        compiled: xgrammar.CompiledGrammar = self._compiled[key]
        return compiled

    def llguidance_alone(self, schema: str) -> LLMatcher:
        """A matcher at the start of the schema through llguidance's own converter; copy it to use it."""
        key = "llguidance alone", schema
        if key not in self._compiled:
            grammar = LLMatcher.grammar_from_json_schema(
                schema, defaults={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
            )
            self._compiled[key] = LLMatcher(self._tokenizer, grammar, log_level=0)
        template: LLMatcher = self._compiled[key]
        return template

    @cached_property
    def _compiler(self) -> xgrammar.GrammarCompiler:
        vocabulary = self.vocabulary
        info = xgrammar.TokenizerInfo(
            text_tokens(vocabulary),
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.vocab_size,
            stop_token_ids=list(vocabulary.stop_ids),
        )
        return xgrammar.GrammarCompiler(info, max_threads=os.cpu_count() or 1)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        vocabulary = self.vocabulary
        wrapper = _Tokens(vocabulary)
        return LLTokenizer(wrapper, n_vocab=vocabulary.vocab_size, eos_token=list(vocabulary.stop_ids))


class _Tokens(TokenizerWrapper):
    """A vocabulary in the shape that `LLTokenizer` reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encode = vocabulary.encode
        self.special_token_ids = sorted(vocabulary.special_ids | set(vocabulary.stop_ids))
        self.tokens = text_tokens(vocabulary)
        self.eos_token_id = vocabulary.stop_ids[0]

    def __call__(self, text: bytes | str) -> list[int]:
        """The canonical tokenisation."""
        assert self._encode is not None
        return self._encode(text.decode() if isinstance(text, bytes) else text)


def text_tokens(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of every id, none for special and stop ids."""
    hidden = vocabulary.special_ids | set(vocabulary.stop_ids)
    return [b"" if i in hidden else token for i, token in enumerate(vocabulary.tokens)]
