"""The regex dialect means what Python's `re` (ASCII) means; numbers between bounds are those numbers."""

import json
import re
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.errors import GrammarCompileError
from specgrammar.language.ranges import decimals, integers
from specgrammar.language.regex import Node
from specgrammar.language.regex_parser import parse_pattern, parse_regex
from specgrammar.language.rules import Grammar
from specgrammar.language.schema_strings import lengths
from specgrammar.protocols.grammar import GrammarSpec, Vocabulary
from specgrammar.testing.earley import EarleyParser, utf8_words
from specgrammar.testing.reference import ReferenceBackend, ReferenceCompiled

BYTES = Vocabulary((*(bytes([b]) for b in range(256)), b""), (256,), frozenset([256]))
REFERENCE = ReferenceBackend(BYTES)

_atom = st.sampled_from(["a", "b", "ab", "\\d", "[^a]", "[a-c1]", ".", "\\w", "\\.", "é", "\\s"])
regexes = st.recursive(
    _atom,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map(lambda r: f"(?:{r})*"),
        inner.map(lambda r: f"({r})?"),
        inner.map(lambda r: f"(?P<g{abs(hash(r))}>{r}){{1,2}}"),
    ),
    max_leaves=6,
)
texts = st.text("ab1.é c", max_size=5)


def matches(node: Node, text: str) -> bool:
    compiled = ReferenceCompiled(GrammarSpec("regex"), (), EarleyParser(Grammar({"start": node}, "start")))
    matcher = REFERENCE.matcher(compiled)
    tokens = list(text.encode())
    return matcher.accept_prefix([*tokens, 256]) == len(tokens) + 1


@settings(max_examples=300, deadline=None)
@given(regex=regexes, text=texts)
def test_regexes_mean_what_they_mean_in_python(regex: str, text: str) -> None:
    try:
        expected = re.compile(regex, re.ASCII)
    except re.error:
        return  # two groups of one name
    assert matches(parse_regex(regex), text) == bool(expected.fullmatch(text))


@settings(max_examples=200, deadline=None)
@given(regex=regexes, begin=st.sampled_from(["", "^"]), end=st.sampled_from(["", "$"]), text=texts)
def test_patterns_search(regex: str, begin: str, end: str, text: str) -> None:
    pattern = f"{begin}(?:{regex}){end}"
    try:
        expected = re.compile(pattern.replace("$", "\\Z"), re.ASCII)
    except re.error:
        return
    node = parse_pattern(pattern)
    assert matches(node, text) == bool(expected.search(text))
    shortest, longest = lengths(node)
    if expected.search(text):
        assert shortest <= len(text)
        assert longest is None or len(text) <= longest


@pytest.mark.parametrize(
    "regex, message",
    [
        ("(?=a)", "look-ahead"),
        ("(?<!a)", "look-behind"),
        ("(?i)a", "flags"),
        ("\\bfoo", "word boundaries"),
        ("\\p{L}", "Unicode properties"),
        ("(a)\\1", "escape"),
        ("a{3,2}", "at least 3 and at most 2"),
        ("*a", "nothing to repeat"),
        ("a**", "nothing to repeat"),
        ("a*+", "possessive"),
        ("[z-a]", "backwards"),
        ("[[:alpha:]]", "POSIX"),
        ("[a", "ends too early"),
        ("a)", "closes nothing"),
        ("a{", "expected {m}"),
        ("\\u12", "hexadecimal"),
        ("\\x{110000}", "no character"),
        ("(?<1>a)", "identifier"),
        ("\\", "ends too early"),
    ],
)
def test_what_is_not_in_the_dialect_is_named(regex: str, message: str) -> None:
    with pytest.raises(GrammarCompileError, match="(?s)regex .*" + re.escape(message)):
        parse_regex(regex)


@settings(max_examples=200, deadline=None)
@given(
    low=st.none() | st.integers(-1200, 1200),
    high=st.none() | st.integers(-1200, 1200),
    value=st.integers(-1300, 1300),
)
def test_integers_between_bounds(low: int | None, high: int | None, value: int) -> None:
    node = integers(low, high)
    inside = (low is None or low <= value) and (high is None or value <= high)
    assert (node is not None and matches(node, str(value))) == inside
    assert node is None or not matches(node, f"0{value}")


numbers = st.decimals(-30, 30, places=2).map(lambda value: value.normalize() + 0)


@settings(max_examples=400, deadline=None)
@given(
    bounds=st.tuples(st.none() | numbers, st.none() | numbers),
    opened=st.tuples(st.booleans(), st.booleans()),
    near=st.sampled_from([None, 0, 1]),
    value=numbers,
)
def test_decimals_between_bounds(
    bounds: tuple[Decimal | None, Decimal | None],
    opened: tuple[bool, bool],
    near: int | None,
    value: Decimal,
) -> None:
    if near is not None and bounds[near] is not None:
        value = bounds[near] or Decimal(0)
    low, high = bounds
    above = low is None or (low < value if opened[0] else low <= value)
    below = high is None or (value < high if opened[1] else value <= high)
    node = decimals(low, opened[0], high, opened[1])
    text = f"{value:f}"
    for spelling in (text, text + "0" if "." in text else text + ".0"):
        assert (node is not None and matches(node, spelling)) == (above and below)
    assert json.loads(text) == float(value)


@given(
    ranges=st.lists(
        st.tuples(st.integers(0, 0xD7FF), st.integers(0, 0xD7FF)).map(sorted), min_size=1, max_size=1
    )
)
def test_utf8_of_code_point_ranges(ranges: list[list[int]]) -> None:
    low, high = ranges[0]
    sequences = utf8_words(((low, high),))
    for code in {
        low,
        high,
        max(low - 1, 0),
        min(high + 1, 0xD7FF),
        (low + high) // 2,
        0x7F,
        0x80,
        0x7FF,
        0x800,
    }:
        text = chr(code).encode()
        found = sum(
            len(sequence) == len(text)
            and all(a <= byte <= b for byte, (a, b) in zip(text, sequence, strict=True))
            for sequence in sequences
        )
        assert found == (low <= code <= high)
