"""Options, versions, kinds of grammars and vocabularies: what is refused is refused at the start, by name."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import xgrammar
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specgrammar.errors import ConfigError, GrammarCompileError, ModelError, PluginError
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar_vllm import plugin, versions
from specgrammar_vllm.backend import SessionBackend
from specgrammar_vllm.kinds import KINDS, spec_of
from specgrammar_vllm.options import Options
from specgrammar_vllm.vocabularies import as_specgrammar_reads_it, as_vllm_reads_it


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"bakend": "xgrammar"}, "specgrammar has no 'bakend'; it has: backend, "),
        ({"backend": ""}, "specgrammar: backend = ''"),
        ({"backend_options": [1]}, "specgrammar: backend_options"),
        ({"grammars": "mine"}, "specgrammar: grammars = 'mine'"),
        ({"grammars": "vllm", "backend": "llguidance"}, "for the backend 'xgrammar', not for 'llguidance'"),
        ({"fill_threads": -1}, "specgrammar: fill_threads"),
        ({"forced_drafts": "yes"}, "specgrammar: forced_drafts"),
        ({"compile_timeout_s": 0}, "specgrammar: compile_timeout_s"),
        ({"algorithm_options": {"depth": 2}}, "algorithm_options need an algorithm"),
        ("xgrammar", "additional_config: specgrammar = 'xgrammar'; expected a table"),
    ],
)
def test_impossible_options(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Options.of({"specgrammar": table})
    assert message in str(caught.value)


def test_defaults_are_vllms_own_grammars_for_xgrammar_only() -> None:
    assert Options.of({"other": 1}) == Options.of(object()) == Options()
    assert Options().as_vllm
    assert Options().takes_weakened
    other = Options.of({"specgrammar": {"backend": "llguidance"}})
    assert not other.as_vllm
    assert not other.takes_weakened


@pytest.mark.parametrize(
    ("name", "version", "good"),
    [
        ("vllm", "0.32.0", True),
        ("vllm", "0.32.4+cpu", True),
        ("vllm", "0.32.0.post1", True),
        ("vllm", "0.31.9", False),
        ("vllm", "0.33.0", False),
        ("vllm", "0.32.0rc1", False),
        ("vllm", "dev", False),
        ("xgrammar", "0.2.8", True),
        ("xgrammar", "0.2.7", False),
        ("llguidance", "1.7.9", True),
        ("llguidance", "1.8.0", False),
    ],
)
def test_the_version_table(name: str, version: str, good: bool) -> None:
    if good:
        versions.check(name, version)
    else:
        with pytest.raises(PluginError) as caught:
            versions.check(name, version)
        assert (
            f"{name} {version} is installed, and specgrammar_vllm supports {versions.supported(name)}"
            in str(caught.value)
        )


@pytest.mark.parametrize(("version", "says"), [("0.32.1", ""), ("0.40.0", "vllm 0.40.0 is installed")])
def test_the_plugin_says_and_changes_nothing(
    version: str, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = ModuleType("vllm")
    fake.__version__ = version  # type: ignore[attr-defined]  # as packages have it
    monkeypatch.setitem(sys.modules, "vllm", fake)
    before = list(sys.modules)
    with caplog.at_level(logging.INFO):
        plugin.register()
        plugin.register()
    assert list(sys.modules) == before
    assert len(caplog.records) == (2 if says else 0)
    assert says in caplog.text


def spec(kind: str, source: str, *, takes_tags: bool = True) -> GrammarSpec:
    return spec_of(kind, source, whitespace="flexible", allow_weakened=True, takes_tags=takes_tags)


def test_every_kind_of_vllm_has_a_grammar() -> None:
    made = {kind: spec(kind, SOURCES[kind]) for kind in KINDS}
    assert made["JSON"] == GrammarSpec.json_schema(
        '{"type": "null"}', whitespace="flexible", allow_weakened=True
    )
    assert made["JSON_OBJECT"] == GrammarSpec.json_object(whitespace="flexible")
    assert made["REGEX"] == GrammarSpec.regex("a+")
    assert made["CHOICE"] == GrammarSpec.choice(["a", "b"])
    assert made["GRAMMAR"] == GrammarSpec.grammar('root ::= "a"')
    assert made["STRUCTURAL_TAG"].kind == "grammar"
    with pytest.raises(GrammarCompileError, match="structural_tag: only xgrammar has them"):
        spec("STRUCTURAL_TAG", SOURCES["STRUCTURAL_TAG"], takes_tags=False)
    with pytest.raises(GrammarCompileError, match=r"structural_tag: .*triggers"):
        spec("STRUCTURAL_TAG", '{"structures": []}')
    with pytest.raises(GrammarCompileError, match="kind POEM is unknown; known: JSON, "):
        spec("POEM", "")


TAG = {"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}
SOURCES = {
    "JSON": '{"type": "null"}',
    "JSON_OBJECT": "",
    "REGEX": "a+",
    "GRAMMAR": 'root ::= "a"',
    "CHOICE": '["a", "b"]',
    "STRUCTURAL_TAG": json.dumps({"structures": [TAG], "triggers": ["<f"]}),
}


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, some words, and three control tokens, one of which ends a sequence."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {piece: i for i, piece in enumerate([*letters, "ab", "true", '"a'])}
    inner = Tokenizer(models.BPE(pieces, [], fuse_unk=False))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>", "<|start|>", "<|stop|>"])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")


TOKENIZER = tokenizer()
END, START, OTHER_END, BANG = (TOKENIZER.get_vocab()[t] for t in ("<|end|>", "<|start|>", "<|stop|>", "!"))
SIZE = len(TOKENIZER) + 5


def test_two_readings_of_a_vocabulary() -> None:
    theirs, ours = as_vllm_reads_it(TOKENIZER, SIZE, ()), as_specgrammar_reads_it(TOKENIZER, SIZE, ())
    assert theirs.vocab_size == ours.vocab_size == SIZE
    assert theirs.stop_ids == ours.stop_ids == (END,)
    assert theirs.tokens[START] == b"<|start|>"
    assert ours.tokens[START] == b""
    text = [i for i in range(SIZE) if i not in ours.special_ids]
    assert [theirs.tokens[i] for i in text] == [ours.tokens[i] for i in text]
    assert ours.special_ids >= {END, START, OTHER_END, *range(len(TOKENIZER), SIZE)}
    named = as_vllm_reads_it(TOKENIZER, SIZE, {OTHER_END, SIZE + 9})
    assert named.stop_ids == (OTHER_END,)
    assert named.tokens[OTHER_END] == b""
    with pytest.raises(ModelError, match="ends a sequence"):
        as_vllm_reads_it(TOKENIZER, SIZE, {SIZE + 9})


def backend(**options: Any) -> SessionBackend:
    return SessionBackend(Options(**options), TOKENIZER, SIZE, compact_json=False, max_drafts=4)


@dataclass
class Kind:
    """A member of vLLM's enumeration."""

    name: str


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("JSON", "null"),
        ("JSON_OBJECT", '{"a" : 1}'),
        ("REGEX", "aaa"),
        ("GRAMMAR", "a"),
        ("CHOICE", "b"),
        ("STRUCTURAL_TAG", "hi <f>12</f> x"),
    ],
)
def test_rows_are_those_of_vllms_own_backend(name: str, text: str) -> None:
    """vLLM's lines for each kind of grammar, by hand; `tests/vllm_adapter/real` has its own code."""
    info = xgrammar.TokenizerInfo.from_huggingface(TOKENIZER, vocab_size=SIZE)
    compiler = xgrammar.GrammarCompiler(info)
    source = SOURCES[name]
    tag = xgrammar.StructuralTagItem(begin="<f>", schema='{"type": "integer"}', end="</f>")
    compiled = {
        "JSON": lambda: compiler.compile_json_schema(source, any_whitespace=True),
        "JSON_OBJECT": lambda: compiler.compile_json_schema('{"type": "object"}', any_whitespace=True),
        "REGEX": lambda: compiler.compile_regex(source),
        "GRAMMAR": lambda: compiler.compile_grammar(source),
        "CHOICE": lambda: compiler.compile_grammar('root ::= "a" | "b"'),
        "STRUCTURAL_TAG": lambda: compiler.compile_structural_tag([tag], ["<f"]),
    }[name]()
    stops = {END, BANG}
    alone = xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(stops))
    grammar = backend().compile_grammar(Kind(name), source, stops)
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids) == text
    theirs = xgrammar.allocate_token_bitmask(1, SIZE)
    ours = np.zeros((1, (SIZE + 31) // 32), dtype=np.int32)
    for token in [*ids, END]:
        alone.fill_next_token_bitmask(theirs)
        grammar.fill([], ours, slice(0, 1))
        bits = np.unpackbits(np.concatenate([theirs.numpy(), ours]).view(np.uint8), axis=1, bitorder="little")
        assert bits[0, :SIZE].tolist() == bits[1, :SIZE].tolist()
        assert alone.accept_token(token)
        assert grammar.accept_tokens("r", [token])
    assert grammar.is_terminated()
    assert alone.is_terminated()


def test_a_schema_that_is_not_enforced_is_said_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    schema = '{"type": "array", "items": {"type": "integer"}, "uniqueItems": true}'
    backend().compile_grammar(Kind("JSON"), schema)
    assert "not enforced of a JSON Schema: /uniqueItems" in caplog.text
    with pytest.raises(GrammarCompileError, match="/uniqueItems"):
        backend(allow_weakened=False).compile_grammar(Kind("JSON"), schema)


def test_sets_of_stop_ids_are_kept_in_bounds() -> None:
    made = backend(backend="llguidance")
    for token in range(12):
        made.compile_grammar(Kind("REGEX"), "a", {token})
    assert len(made._sites) == 8
    made.destroy()
    assert not made._sites


def test_an_unknown_backend_is_refused_at_the_start() -> None:
    with pytest.raises(PluginError, match="no backend is called 'outlines'"):
        backend(backend="outlines")
    with pytest.raises(ConfigError, match="no option 'threads'"):
        backend(backend_options={"threads": 2})
