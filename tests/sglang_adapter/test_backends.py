# pyright: reportMissingImports=false

"""Our backends where sglang creates its grammar backend, with a real tokenizer."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from tests.sglang_adapter.conftest import INSTALLED, NEEDS_SGLANG

if not INSTALLED:
    pytest.skip(NEEDS_SGLANG, allow_module_level=True)

from sglang.srt.constrained.base_grammar_backend import create_grammar_backend, register_grammar_backend
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarBackend
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_context

from tests.sglang_adapter.pieces import load

pytestmark = pytest.mark.model

COLUMNS = 49_280
"""Columns of logits: more than SmolLM2 has ids, as models have that pad their vocabulary."""
NAMES = ("specgrammar-xgrammar", "specgrammar-llguidance")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    from specgrammar_transformers import fetch_default_model

    load_plugins()
    return AutoTokenizer.from_pretrained(fetch_default_model())


def create(tokenizer: Any, name: str, **settings: Any) -> Any:
    """The grammar backend that sglang makes of its settings."""
    with get_context().override_server_args(grammar_backend=name, **settings):
        return create_grammar_backend(None, tokenizer, COLUMNS, {tokenizer.eos_token_id}, think_end_ids=[1])


def compile_on(backend: Any, kind: str, text: str, *, reasoning: bool = False) -> Any:
    """What a request gets, waiting for it as sglang's grammar manager does."""
    value, is_cached = backend.get_cached_or_future_value((kind, text), reasoning)
    if is_cached:
        return value
    assert isinstance(value, Future)
    made = value.result()
    backend.set_cache((kind, text), made.copy())
    return made


def legal(grammar: Any, tokenizer: Any, texts: list[str]) -> list[bool]:
    """Which of some texts the grammar takes as a whole, stop token and all."""
    answers = []
    for text in texts:
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        copied = grammar.copy()
        try:
            for token in ids:
                copied.accept_token(token)
        except ValueError:
            answers.append(False)
        else:
            answers.append(copied.is_terminated())
    return answers


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_grammar_compiles(name: str, tokenizer: Any) -> None:
    backend = create(tokenizer, name)
    schema = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    kinds = {
        ("json", schema): ['{"n": 1}', '{"n":1}', '{"n": "x"}'],
        ("json", "$$ANY$$"): ['{"a": [1, 2]}', "{ }", "1"],
        ("regex", "(yes|no)+"): ["yesno", "yes", "maybe"],
        ("ebnf", 'root ::= "a" root "b" | "c"'): ["aacbb", "c", "aab"],
    }
    for (kind, text), texts in kinds.items():
        grammar = compile_on(backend, kind, text)
        assert legal(grammar, tokenizer, texts) == [True, True, False], (kind, text)
        assert grammar.grammar_stats.dispatch_type == kind
        assert compile_on(backend, kind, text).grammar_stats.is_cache_hit
        rows = grammar.allocate_vocab_mask(COLUMNS, 1, "cpu")
        grammar.fill_vocab_mask(rows, 0)
        assert rows.shape == (1, COLUMNS // 32)
        assert not rows[0, 49_152 // 32 :].any(), "padded columns are not legal"


def test_separators_follow_the_setting(tokenizer: Any) -> None:
    texts = ['{"a": 1}', '{"a":1}']
    for disabled, answers in ((False, [True, True]), (True, [True, False])):
        backend = create(tokenizer, NAMES[0], constrained_json_disable_any_whitespace=disabled)
        assert legal(compile_on(backend, "json", "$$ANY$$"), tokenizer, texts) == answers


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("regex", "(", "regex"),
        ("json", '{"type": "string", "contentEncoding": "base64", "not": {"const": "a"}}', "not"),
        ("structural_tag", "{}", "structural tags are not supported"),
        ("regex", "\x00", "NUL"),
    ],
)
def test_what_does_not_compile_ends_its_request_with_the_reason(
    kind: str, text: str, message: str, tokenizer: Any
) -> None:
    made = compile_on(create(tokenizer, NAMES[0]), kind, text)
    assert isinstance(made, load().InvalidGrammarObject)
    assert message in made.error_message


def test_a_registered_backend_alone_loses_the_reasoning_gate_and_ours_keeps_it(tokenizer: Any) -> None:
    from specgrammar_sglang.backend import SglangBackend

    ours = create(tokenizer, NAMES[0], reasoning_parser="deepseek-r1")
    register_grammar_backend("plain", lambda *_: ours.grammar_backend)
    plain = create(tokenizer, "plain", reasoning_parser="deepseek-r1")
    assert isinstance(plain, SglangBackend), "0.5.23 puts no reasoning gate before a registered backend"
    assert isinstance(ours, ReasonerGrammarBackend)
    assert isinstance(create(tokenizer, "xgrammar", reasoning_parser="deepseek-r1"), ReasonerGrammarBackend)

    thinking = tokenizer.encode("Well...</think>", add_special_tokens=False)
    answer = tokenizer.encode("yes", add_special_tokens=False)
    gated = compile_on(ours, "regex", "yes", reasoning=True)
    for token in (*thinking, *answer, tokenizer.eos_token_id):
        gated.accept_token(token)
    assert gated.is_terminated()
    with pytest.raises(ValueError, match="refuses token id"):
        compile_on(plain, "regex", "yes", reasoning=True).accept_token(thinking[0])
    with pytest.raises(ValueError, match="refuses token id"):
        compile_on(ours, "regex", "yes", reasoning=False).accept_token(thinking[0])


def test_strict_thinking_filters_tokens(tokenizer: Any) -> None:
    backend = create(tokenizer, NAMES[0], reasoning_parser="deepseek-r1", enable_strict_thinking=True)
    assert backend.enable_strict_thinking
    grammar = backend.init_strict_reasoning_grammar(True)
    grammar.max_think_tokens, grammar.enable_token_filter = 0, True
    grammar.token_filter_fn = backend.grammar_backend.set_token_filter
    rows = grammar.allocate_vocab_mask(COLUMNS, 1, "cpu")
    grammar.fill_vocab_mask(rows, 0)
    end = backend.think_end_ids[0]
    assert rows[0, end // 32].item() == 1 << (end % 32)
    assert rows.count_nonzero() == 1
