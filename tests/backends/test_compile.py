"""Hostile grammars end with one clear error, in time, and never take the process with them."""

import json
import time
from typing import Any

import numpy as np
import pytest

from specgrammar.errors import ConfigError, DeadEndError, GrammarCompileError
from specgrammar.grammar.compile import compile_grammar
from specgrammar.protocols.grammar import BackendFacts, GrammarBackend, GrammarSpec, Vocabulary


def nested(open_text: str, close_text: str, depth: int) -> str:
    return open_text * depth + "true" + close_text * depth


HOSTILE = [
    (GrammarSpec("json_schema", nested('{"items":', "}", 10_000)), "nested"),
    (GrammarSpec("json_schema", nested('{"items":', "}", 200)), "nested more than 64 deep"),
    (GrammarSpec("json_schema", '{"const":' + nested("[", "]", 10_000) + "}"), "nested"),
    (GrammarSpec("json_schema", json.dumps({"enum": ["x" * 100] * 20_000})), "at most 1048576"),
    (
        GrammarSpec(
            "json_schema",
            json.dumps(
                {"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(9_000)}}
            ),
        ),
        "nothing satisfies|weakened|rules",
    ),
    (
        GrammarSpec(
            "json_schema",
            json.dumps(
                {
                    "properties": {"a": {"$ref": "#/$defs/0"}},
                    "$defs": {
                        str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}, {"const": i}]} for i in range(5_000)
                    }
                    | {"5000": True},
                }
            ),
        ),
        "rules; at most 2000",
    ),
    (GrammarSpec("regex", "(" * 10_000), "nested more than 64 deep"),
    (GrammarSpec("regex", "((((", allow_weakened=True), "not closed"),
    (GrammarSpec("regex", "(a{1000}){1000}"), "1000000 character positions"),
    (GrammarSpec("regex", "a{99999999}"), "may go up to"),
    (GrammarSpec("regex", "a\0b"), "NUL character at 1"),
    (GrammarSpec("regex", "a\ud800"), "lone surrogate at character 1"),
    (GrammarSpec("regex", "a^"), "where a match begins or ends"),
    (GrammarSpec("regex", "[^\\s\\S]"), "matches nothing"),
    (GrammarSpec("choice", '["a", 1]'), "at least one string"),
    (GrammarSpec("choice", "[]"), "at least one string"),
    (GrammarSpec("choice", '{"a": 1}'), "at least one string"),
    (GrammarSpec("choice", '["\\ud800"]'), "lone surrogate"),
    (GrammarSpec("choice", "[" * 100_000), "nested|not valid JSON"),
    (GrammarSpec("wrong", "x"), "unknown kind"),  # type: ignore[arg-type]  # on purpose
    (GrammarSpec("regex", 5), "the source is a int"),  # type: ignore[arg-type]  # on purpose
    (GrammarSpec("regex", "a", whitespace="tabs"), "unknown whitespace"),  # type: ignore[arg-type]  # on purpose
]


@pytest.mark.parametrize("spec, message", HOSTILE, ids=lambda value: str(value)[:40])
def test_hostile_sources(backend: GrammarBackend, spec: GrammarSpec, message: str) -> None:
    for run in (backend.compile, lambda spec: compile_grammar(backend, spec)):
        with pytest.raises(GrammarCompileError, match=message) as caught:
            run(spec)
        assert len(str(caught.value).splitlines()) == 1
        assert len(str(caught.value)) < 600


GRAMMARS = [
    ("xgrammar", "start: /a/", "EBNF is expected"),
    ("xgrammar", "", "EBNF is expected"),
    ("llguidance", "", "no start rule"),
    ("llguidance", "start: x", "unknown name"),
    ("llguidance", "start: /" + "(" * 10_000 + "a" + ")" * 10_000 + "/", "nested 10000 deep"),
    (
        "llguidance",
        "\n".join(["start: a0", *(f"a{i}: a{i + 1}" for i in range(10_000))]),
        "10001 rules; at most 2000",
    ),
    ("llguidance", "start: <[3]>", "special tokens"),
    ("llguidance", "start: <|im|>", "special tokens"),
    ("llguidance", '%llguidance {"allow_invalid_utf8": true}\nstart: "a"', "%llguidance"),
    ("llguidance", "start: a\na[max_tokens=3]: /.*/", "attributes"),
    ("llguidance", "a" * 900_000, "llguidance: "),
    ("llguidance", '"' + '\\"' * 300_000, "llguidance: "),
    ("llguidance", "start: /" + "\\/" * 300_000, "llguidance: "),
]


@pytest.mark.parametrize("name, source, message", GRAMMARS, ids=lambda value: value[:40])
def test_hostile_grammars(backends: dict[str, GrammarBackend], name: str, source: str, message: str) -> None:
    with pytest.raises(GrammarCompileError, match=message) as caught:
        compile_grammar(backends[name], GrammarSpec("grammar", source))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "source",
    ['start: "a" start | "b"', 'start: start "b" | "a" start | "b"', 'start: (("a"*)*)* "b" "<x>"?'],
)
def test_recursive_lark_works(backends: dict[str, GrammarBackend], vocabulary: Vocabulary, source: str) -> None:
    backend = backends["llguidance"]
    matcher = backend.matcher(compile_grammar(backend, GrammarSpec("grammar", source)))
    a, b = vocabulary.tokens.index(b"a"), vocabulary.tokens.index(b"b")
    assert matcher.accept_prefix([a, a, b, vocabulary.stop_ids[0]]) == 4


def test_lark_that_admits_nothing_is_a_dead_end(
    backends: dict[str, GrammarBackend], vocabulary: Vocabulary
) -> None:
    backend = backends["llguidance"]
    matcher = backend.matcher(backend.compile(GrammarSpec("grammar", 'start: "a" x\nx: x')))
    bitmask = np.full((1, vocabulary.num_words), -1, np.int32)
    matcher.accept(vocabulary.tokens.index(b"a"))
    with pytest.raises(DeadEndError, match="admits no token"):
        matcher.fill_bitmask(bitmask, 0)
    assert not bitmask.any()


class _Slow:
    """A backend whose `compile` takes long, or fails."""

    api_version = 1
    facts = BackendFacts(None, True, frozenset(), frozenset())
    vocabulary = Vocabulary((b"a", b""), (1,))

    def __init__(self, act: Any) -> None:
        self.compile = act

    def matcher(self, compiled: object) -> Any:
        raise NotImplementedError


def test_the_time_limit_and_foreign_errors() -> None:
    slow: Any = _Slow(lambda _: time.sleep(5))
    with pytest.raises(
        GrammarCompileError, match=r"regex: not compiled within 0.05 s .compile_timeout_s.; make it smaller"
    ):
        compile_grammar(slow, GrammarSpec("regex", "a"), timeout_s=0.05)
    broken: Any = _Slow(lambda _: 1 // 0)
    with pytest.raises(GrammarCompileError, match="regex: the backend failed: integer division"):
        compile_grammar(broken, GrammarSpec("regex", "a"))
    with pytest.raises(ConfigError, match="timeout_s = 0"):
        compile_grammar(broken, GrammarSpec("regex", "a"), timeout_s=0)


def test_a_native_compiler_does_not_hold_the_time_limit_up(native: GrammarBackend) -> None:
    choices = json.dumps([f"{i:x}".translate(str.maketrans("6789", "abcd")) * 3 for i in range(30_000)])
    with pytest.raises(GrammarCompileError, match=r"choice: not compiled within 0.001 s"):
        compile_grammar(native, GrammarSpec("choice", choices), timeout_s=0.001)


@pytest.mark.parametrize("options", [{"max_threads": 0}, {"max_threads": -1}])
def test_options_are_checked(backends: dict[str, GrammarBackend], options: dict[str, int]) -> None:
    backend = backends["xgrammar"]
    with pytest.raises(ConfigError, match=f"xgrammar: max_threads = {options['max_threads']}"):
        type(backend)(backend.vocabulary, **options)  # type: ignore[call-arg]  # a class
