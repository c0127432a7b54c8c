# pyright: reportMissingImports=false
# (sglang is installed where this runs, not where it is checked)
"""Backends of ours as grammar backends of sglang's."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    GrammarStats,
    InvalidGrammarObject,
)
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarBackend
from sglang.srt.constrained.torch_ops.token_filter_torch_ops import set_token_filter_torch
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang.srt.runtime_context import get_serving

from specgrammar.errors import GrammarCompileError
from specgrammar.grammar.compile_service import CompileService
from specgrammar.protocols.grammar import GrammarBackend, GrammarSpec, Whitespace
from specgrammar.registry import BACKENDS, create
from specgrammar_sglang.grammar import SglangGrammar
from specgrammar_sglang.vocabulary import target_vocabulary

_ANY_JSON = "$$ANY$$"
"""What sglang passes as the schema where any JSON will do."""


class SglangBackend(BaseGrammarBackend):
    """A grammar backend of sglang's over one of ours.

    A grammar that does not compile is sglang's `InvalidGrammarObject`, which ends its request with the message.
    """

    # `ReasonerGrammarBackend` asks the backend for these, where a request has no grammar.
    allocate_vocab_mask = staticmethod(SglangGrammar.allocate_vocab_mask)
    move_vocab_mask = staticmethod(SglangGrammar.move_vocab_mask)
    apply_vocab_mask = staticmethod(SglangGrammar.apply_vocab_mask)
    set_token_filter = staticmethod(set_token_filter_torch)
    is_support_token_filter = True

    def __init__(self, backend: GrammarBackend, whitespace: Whitespace) -> None:
        """Wrap a backend; `whitespace` is what JSON is separated by."""
        super().__init__()
        self._backend = backend
        self._compiles = CompileService(backend)
        self._whitespace: Whitespace = whitespace

    def dispatch_json(self, key_string: str) -> BaseGrammarObject:
        """Compile a JSON schema."""
        if key_string == _ANY_JSON:
            return self._compile("json", GrammarSpec.json_object(whitespace=self._whitespace))
        return self._compile("json", GrammarSpec.json_schema(key_string, whitespace=self._whitespace))

    def dispatch_regex(self, key_string: str) -> BaseGrammarObject:
        """Compile a regular expression."""
        return self._compile("regex", GrammarSpec.regex(key_string))

    def dispatch_ebnf(self, key_string: str) -> BaseGrammarObject:
        """Compile a grammar in a syntax that the backend reads."""
        return self._compile("ebnf", GrammarSpec.grammar(key_string))

    def dispatch_structural_tag(self, key_string: str) -> BaseGrammarObject:  # noqa: ARG002  # sglang's
        """Structural tags are not compiled."""
        return InvalidGrammarObject(
            "structural tags are not supported by specgrammar; use a JSON schema, a regex or a grammar, or "
            "start sglang with --grammar-backend xgrammar"
        )

    def _compile(self, kind: str, spec: GrammarSpec) -> BaseGrammarObject:
        try:
            compiled = self._compiles.submit(spec).result()  # on a thread of sglang's executor
        except GrammarCompileError as error:
            return InvalidGrammarObject(str(error))
        return SglangGrammar(self._backend, compiled, GrammarStats(dispatch_type=kind))


def make_backend(
    name: str,
    server_args: Any,  # noqa: ARG001  # sglang's; the engine's configuration stays outside
    tokenizer: Any,
    vocab_size: int,
    eos_token_ids: Collection[int] | int | None = None,
) -> BaseGrammarBackend:
    """What sglang calls to create a registered grammar backend.

    sglang 0.5.23 puts its own backends behind a `ReasonerGrammarBackend` where a reasoning parser is
    configured, and registered ones not, so that their grammars would begin with the reasoning. Here ours is
    put behind one, too.

    Args:
        name: of our backend, e.g. `xgrammar`.
        server_args: not read.
        tokenizer: the model's, a fast one.
        vocab_size: columns of the model's logits.
        eos_token_ids: what ends a sequence for the model, beside the tokenizer's own.

    Raises what `target_vocabulary` and the backend raise.
    """
    vocabulary = target_vocabulary(tokenizer, vocab_size, eos_token_ids)
    serving = get_serving()
    whitespace: Whitespace = "spaced" if serving.constrained_json_disable_any_whitespace else "flexible"
    backend = SglangBackend(create(BACKENDS, name, vocabulary), whitespace)
    if not serving.reasoning_parser:
        return backend
    parser = ReasoningParser(model_type=serving.reasoning_parser, stream_reasoning=False, tokenizer=tokenizer)
    if not parser.detector.get_think_end_token_ids(tokenizer):
        return backend  # sglang has warned of it, and gates nothing either
    return ReasonerGrammarBackend(
        backend, parser, tokenizer, enable_strict_thinking=serving.enable_strict_thinking
    )


def backend_maker(name: str) -> partial[BaseGrammarBackend]:
    """`make_backend` for a name, in the shape that sglang registers."""
    return partial(make_backend, name)
