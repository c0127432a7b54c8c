"""Forced text is the only text that a grammar allows, on every backend; its spelling is the tokenizer's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.grammar.forced import Speller
from specgrammar.grammar.gate import Markers
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.abilities import SupportsForcedTokens
from specgrammar.protocols.grammar import GrammarMatcher, GrammarSpec, Vocabulary
from specgrammar.testing.earley import EarleyParser
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.toys import GRAMMARS, STOP, TEXTS, VOCABULARY
from tests.toys import BACKEND_NAMES, legal_ids, matcher

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["abc", "ab"]}}}
SPECS = (
    *GRAMMARS,
    GrammarSpec.regex("(ab){3,9}c"),
    GrammarSpec.regex("a(é|è)b"),
    GrammarSpec.regex("ab|abc"),
    GrammarSpec.choice(["", "abc"]),
    GrammarSpec.json_schema({**OBJECT, "required": ["a", "b"]}),
    GrammarSpec.json_schema({**OBJECT, "required": ["a", "b"]}, whitespace="compact"),
    GrammarSpec.grammar('root ::= "a" root "b" | "12"'),
)
REFERENCE = ReferenceBackend(VOCABULARY)


def only_text(parser: EarleyParser, tokens: list[int]) -> bytes:
    """By definition: byte after byte, while exactly one is legal and the text may not end."""
    state = parser.start
    for byte in VOCABULARY.text(tokens):
        behind = parser.step(state, byte)
        assert behind is not None, "the backend took what the reference refuses"
        state = behind
    return parser.only_text(state)


def forced(one: GrammarMatcher) -> bytes:
    assert isinstance(one, SupportsForcedTokens)
    return one.forced_text()


@pytest.mark.parametrize("name", BACKEND_NAMES)
@settings(max_examples=150)
@given(data=st.data())
def test_forced_text_is_the_only_text_that_the_grammar_allows(name: str, data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from(SPECS))
    parser, one, accepted = REFERENCE.compile(spec).parser, matcher(name, spec), list[int]()
    for _ in range(data.draw(st.integers(0, 8))):
        if not (text := [token for token in _legal(one) if token != STOP]):
            break
        token = data.draw(st.sampled_from(text))
        assert one.accept(token)
        accepted.append(token)
        if data.draw(st.integers(0, 1)):
            assert forced(one) == only_text(parser, accepted)
            one.rollback(1)
            accepted.pop()
    legal = _legal(one)
    assert forced(one) == only_text(parser, accepted)
    assert forced(one) == forced(one), "asking changes nothing"
    assert _legal(one) == legal, "the state is left as found"
    if STOP in legal:
        assert forced(one) == b"", "it may end here"
        assert one.accept(STOP)
        assert forced(one) == b"", "nothing is behind the end"


def _legal(one: GrammarMatcher) -> list[int]:
    from specgrammar.errors import DeadEndError

    try:
        return legal_ids(one)
    except DeadEndError:
        return []


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_a_session_says_what_follows_drafts(name: str) -> None:
    a, b, c, ab = (TEXTS.index(text) for text in (b"a", b"b", b"c", b"ab"))
    session = GrammarSession(VOCABULARY, matcher(name, GrammarSpec.regex("(ab){3}(c|1)")))
    assert session.forced_text() == b"ababab"
    assert session.forced_text([a, b]) == b"abab"
    assert session.forced_text([ab, ab, ab]) == b"", "c or 1"
    assert session.forced_text([a, c]) == b"", "an illegal draft"
    assert session.forced_text([ab, ab, ab, c, STOP]) == b"", "behind the end"
    assert session.forced_text() == b"ababab", "nothing has moved"
    session.commit([a])
    assert session.forced_text() == b"babab"
    assert GrammarSession(VOCABULARY).forced_text() == b""
    gated = GrammarSession(
        VOCABULARY, matcher(name, GrammarSpec.regex("(ab){3}c")), gate=Markers(after=((c,),))
    )
    assert gated.forced_text() == b""
    assert gated.forced_text([c]) == b"abababc"
    assert gated.forced_text([c, ab]) == b"ababc"


def spelt(vocabulary: Vocabulary, last: int, text: bytes) -> list[bytes]:
    return [vocabulary.tokens[token] for token in Speller(vocabulary).spell(last, text)]


def test_without_a_tokenizer_the_longest_token_comes_first() -> None:
    assert spelt(VOCABULARY, 0, b"ababc12") == [b"ab", b"abc", b"12"]
    assert spelt(VOCABULARY, 0, b"abx") == [b"ab"], "up to what no token says"
    assert spelt(VOCABULARY, 0, b"") == []


class Tokenizer:
    """Joins a quote with what stands behind it, as many do."""

    tokens = (b"n", b'"', b'"n', b": ", b" ", b":", b"\xc3", b"\xa9", "é".encode(), b"")

    def __call__(self, text: str) -> list[int]:
        rest, found = text.encode(), list[int]()
        while rest:
            token = max((t for t in self.tokens if t and rest.startswith(t)), key=len)
            found.append(self.tokens.index(token))
            rest = rest[len(token) :]
        return found


SMALL = Vocabulary(Tokenizer.tokens, (9,), frozenset({9}), encode=Tokenizer())


@pytest.mark.parametrize(
    "last, text, expected",
    [
        (b"n", b'": "n', [b'"', b": ", b'"n']),
        (b'"', b'n": ', [b"n", b'"', b": "]),  # the tokenizer says '"n', the target has said '"' alone
        (b":", b" ", [b" "]),
        (b"n", b"\xc3\xa9", ["é".encode()]),
        (b"n", b"n\xc3", [b"n"]),  # ends inside a character
        (b"\xc3", b"\xa9n", [b"\xa9", b"n"]),  # begins inside one
        (b"n", b"\xc3", []),
    ],
)
def test_text_is_spelt_as_the_tokenizer_does_behind_the_last_token(
    last: bytes, text: bytes, expected: list[bytes]
) -> None:
    assert spelt(SMALL, SMALL.tokens.index(last), text) == expected


@settings(max_examples=200)
@given(data=st.data())
def test_what_is_spelt_is_the_beginning_of_the_text(data: st.DataObject) -> None:
    vocabulary = data.draw(st.sampled_from([SMALL, VOCABULARY]))
    pieces = [token for token in vocabulary.tokens if token]
    text = b"".join(data.draw(st.lists(st.sampled_from(pieces), max_size=6)))
    last = data.draw(st.integers(0, vocabulary.vocab_size - 1))
    found = spelt(vocabulary, last, text)
    assert all(found)
    assert text.startswith(b"".join(found))
