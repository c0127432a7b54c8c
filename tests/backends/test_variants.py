"""Variants of rules that end with what follows them: fewer tokens are looked at anew, and no mask changes."""

from __future__ import annotations

import itertools
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.errors import GrammarCompileError
from specgrammar.language.frontend import rules_of
from specgrammar.protocols.grammar import GrammarBackend, GrammarMatcher, GrammarSpec, Vocabulary, Whitespace
from specgrammar_xgrammar import XGrammarBackend, XGrammarCompiled
from specgrammar_xgrammar.ebnf import to_ebnf
from tests.backends.grammars import grammars
from tests.backends.schemas import legal_tokens, schemas

PUNCTUATION = {'"a"': '","', '"b"': '"]"', '"1"': '"}"', '"12"': '", "', '"x"': "[ ]{0,2}", "[^a]": "[^,]"}
"""What turns a random grammar into one with texts before punctuation, where variants are."""


def ebnf_of(spec: GrammarSpec, reach: int | None = None) -> str:
    rules, _ = rules_of(spec, XGrammarBackend.facts)
    return to_ebnf(rules) if reach is None else to_ebnf(rules, reach)


def matcher_of(backend: XGrammarBackend, ebnf: str) -> GrammarMatcher:
    native = backend._compiler.compile_grammar(ebnf)
    return backend.matcher(XGrammarCompiled(GrammarSpec.grammar(""), (), native, 0))


@pytest.fixture(scope="module")
def xgrammar(backends: dict[str, GrammarBackend]) -> XGrammarBackend:
    backend = backends["xgrammar"]
    assert isinstance(backend, XGrammarBackend)
    return backend


def assert_equal_masks(backend: XGrammarBackend, spec: GrammarSpec, seed: int, num_tokens: int = 40) -> None:
    """Walk at random through both writings of a grammar."""
    rng = random.Random(seed)
    written, plain = (matcher_of(backend, ebnf_of(spec, reach)) for reach in (None, 0))
    for _ in range(num_tokens):
        legal = legal_tokens(plain, backend.vocabulary)
        assert legal_tokens(written, backend.vocabulary) == legal
        if not legal:
            return
        token = rng.choice(legal)
        assert written.accept(token)
        assert plain.accept(token)
        if plain.finished:
            return


@settings(max_examples=150, deadline=None)
@given(source=grammars(), seed=st.integers(0, 2**32))
def test_no_mask_changes_in_any_grammar(xgrammar: XGrammarBackend, source: str, seed: int) -> None:
    for word, mark in PUNCTUATION.items():
        source = source.replace(word, mark)
    spec = GrammarSpec.grammar(source)
    try:
        ebnf_of(spec)
    except GrammarCompileError:
        return
    assert_equal_masks(xgrammar, spec, seed)


@settings(max_examples=150, deadline=None)
@given(
    schema=schemas, seed=st.integers(0, 2**32), whitespace=st.sampled_from(["spaced", "compact", "flexible"])
)
def test_no_mask_changes_in_any_schema(
    xgrammar: XGrammarBackend, schema: object, seed: int, whitespace: Whitespace
) -> None:
    spec = GrammarSpec("json_schema", json.dumps(schema), whitespace=whitespace, allow_weakened=True)
    try:
        ebnf_of(spec)
    except GrammarCompileError:
        return
    assert_equal_masks(xgrammar, spec, seed)


TEXT = {"type": "string"}
OBJECT = {
    "type": "object",
    "properties": {"a": TEXT, "b": {"type": "array", "items": TEXT}, "c": {}, "d": TEXT},
    "required": ["a"],
    "additionalProperties": False,
}
RECURSIVE = {
    "type": "object",
    "properties": {"a": {"type": ["string", "null"]}, "b": {"$ref": "#"}, "c": {"items": {"$ref": "#"}}},
    "additionalProperties": {"type": "string", "maxLength": 3},
}


@pytest.mark.parametrize("whitespace", ["spaced", "compact", "flexible"])
@pytest.mark.parametrize("schema", [OBJECT, RECURSIVE, {"type": "object"}], ids=["object", "recursive", "any"])
def test_no_mask_changes_in_objects(
    xgrammar: XGrammarBackend, schema: dict[str, object], whitespace: Whitespace
) -> None:
    spec = GrammarSpec.json_schema(json.dumps(schema), whitespace=whitespace)
    for seed in range(8):
        assert_equal_masks(xgrammar, spec, seed, 80)


LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
ENDINGS = ['"', '",', '"}', '"]', '")']


def num_uncertain(ebnf: str) -> int:
    """Tokens that are looked at anew at the worst position."""
    texts = [chr(code).encode() for code in range(128)]
    texts += [f"{letter}{ending}".encode() for letter in LETTERS for ending in ENDINGS]
    backend = XGrammarBackend(Vocabulary((*texts, b""), (len(texts),), frozenset({len(texts)})))
    compiled = json.loads(backend._compiler.compile_grammar(ebnf).serialize_json())
    return max(len(mask["uncertain_indices"]) for _, mask in compiled["adaptive_token_mask_cache"])


@pytest.mark.parametrize("whitespace", ["spaced", "compact", "flexible"])
@pytest.mark.parametrize("length", [{}, {"maxLength": 20}], ids=["any length", "bounded"])
def test_inside_a_string_no_token_is_looked_at_anew(whitespace: Whitespace, length: dict[str, int]) -> None:
    text = TEXT | length
    if whitespace == "flexible" and length:
        pytest.skip("too dear to compile")
    schema = {
        "type": "object",
        "properties": {"a": text, "b": text},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    spec = GrammarSpec.json_schema(json.dumps(schema), whitespace=whitespace)
    assert num_uncertain(ebnf_of(spec)) <= 4
    assert num_uncertain(ebnf_of(spec, 0)) >= len(LETTERS)


def test_variants_are_limited() -> None:
    """Every bracket would be a variant of a long rule; what is written stays in proportion."""
    uses = " | ".join(f'"{mark}" text "{mark}"' for mark in "()[]{}<>,.;:!?")
    spec = GrammarSpec.grammar(f'root ::= {uses}\ntext ::= ({uses} | [^"]){{60}} | root')
    assert len(ebnf_of(spec)) < 3 * len(ebnf_of(spec, 0)) + 10_000
    few = GrammarSpec.grammar('root ::= "(" text ")"\ntext ::= [^)]{60} | "(" root')
    assert ebnf_of(few) != ebnf_of(few, 0)


@pytest.mark.parametrize("most", [0, 1])
def test_a_string_of_nearly_no_characters(xgrammar: XGrammarBackend, most: int) -> None:
    """Of a repetition that is none nothing is left to count down."""
    spec = GrammarSpec.json_schema({"properties": {"a": TEXT | {"maxLength": most}}, "required": ["a"]})
    assert_equal_masks(xgrammar, spec, seed=0)


LETTERS_OF_PATTERNS = "abc1-"
SMALL = Vocabulary((*(letter.encode() for letter in LETTERS_OF_PATTERNS), b""), (5,), frozenset({5}))
WORDS = ["".join(word) for length in range(5) for word in itertools.product(LETTERS_OF_PATTERNS, repeat=length)]


@pytest.mark.parametrize(
    "pattern",
    [
        "(a?|a?|a?)b",
        "(a*|a*|a*)b",
        "(|a{0}|b{0}|c{0})1",
        "(|||)1",
        "((ab)?|(ab)?|(ab)?)c",
        "(a{1}|a{2}|a{3}|a)b",
        "(ba{1}|ba{2}|ba{3}|a{2}|a{3}|a{1})c?",
        "(-?|-?|-?)1",
    ],
)
def test_alternatives_that_are_alike_are_the_same_language(pattern: str) -> None:
    backend = XGrammarBackend(SMALL)
    compiled = backend.compile(GrammarSpec.regex(pattern))
    for word in WORDS:
        matcher = backend.matcher(compiled)
        tokens = [LETTERS_OF_PATTERNS.index(letter) for letter in word]
        is_word = matcher.accept_prefix([*tokens, 5]) == len(word) + 1
        assert is_word == bool(re.fullmatch(pattern, word)), word


def test_long_counts_are_not_written_out() -> None:
    assert len(ebnf_of(GrammarSpec.regex("(a{1000}|a{1001}|a{1002})"))) < 10_000
