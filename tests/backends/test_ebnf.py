"""EBNF: what is read, what is refused and where, and that all backends enforce the same language."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.errors import DeadEndError, GrammarCompileError
from specgrammar.grammar.compile import compile_grammar
from specgrammar.language.ebnf import parse_ebnf
from specgrammar.language.regex import MAX_SIZE
from specgrammar.protocols.grammar import GrammarBackend, GrammarMatcher, GrammarSpec, Vocabulary
from specgrammar.testing.reference import ReferenceBackend
from specgrammar_xgrammar import XGrammarBackend
from tests.backends.grammars import GRAMMARS, JSON, grammars

BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), (256,), frozenset({256}))
REFERENCE = ReferenceBackend(BYTES)


def matches(source: str, text: str) -> bool:
    matcher = REFERENCE.matcher(REFERENCE.compile(GrammarSpec.grammar(source)))
    tokens = [*text.encode(), 256]
    return matcher.accept_prefix(tokens) == len(tokens)


READ = [
    ('root ::= "ab"', ["ab"], ["", "a", "abb"]),
    (r'root ::= "\n\r\t\x41\u00e9\U0001F600\"\\\[\-\/"', ['\n\r\tAé😀"\\[-/'], ["n"]),
    ("root ::= [a-c]", ["a", "c"], ["d", "-", ""]),
    ("root ::= [-a]", ["-", "a"], ["b"]),
    ("root ::= [a-]", ["-", "a"], ["b"]),
    ("root ::= [a-c-e]", ["b", "-", "e"], ["d"]),
    (r"root ::= [\]\\\-x-z]", ["]", "\\", "-", "y"], ["["]),
    ("root ::= [[]", ["["], ["]"]),
    (r"root ::= [^a-y\n]", ["z", "é", "😀"], ["a", "\n"]),
    (r"root ::= [\u00e0-\u00ff]", ["é"], ["e"]),
    ("root ::= .", ["a", "\n", "😀"], ["", "ab"]),
    ('root ::= "a"*', ["", "aaa"], ["b"]),
    ('root ::= "ab"+', ["ab", "abab"], ["", "aba", "abb"]),
    ('root ::= "a" ? "b"', ["b", "ab"], ["a", "aab"]),
    ('root ::= "a"{2}', ["aa"], ["a", "aaa"]),
    ('root ::= "a"{ 2 , }', ["aa", "aaaa"], ["a"]),
    ('root ::= "a"{1,2}', ["a", "aa"], ["", "aaa"]),
    ('root ::= "a"{0}', [""], ["a"]),
    ('root ::= ("a" | "b" "c") "d"', ["ad", "bcd"], ["abcd", "a"]),
    ('root ::= ("a" | )', ["a", ""], ["aa"]),
    ('root ::= | "a"', ["a", ""], ["aa"]),
    ('root ::= ""', [""], ["a"]),
    ('root::="a"b\nb::="c"', ["ac"], ["a"]),
    ('x-1 ::= "x"\nroot ::= x_1 | x-1 | X-1\nx_1 ::= "y"\nX-1 ::= "z"', ["x", "y", "z"], []),
    ('root ::= "a" # one ::= "comment"\n  # another\n  | "b"\n\n\tother ::= "c"', ["a", "b"], ["c"]),
    ('root ::=\n "a"\n\n "b" other\nother # c\n::= "c"', ["abc"], ["ab"]),
    ('root ::= start l0 n1\nstart ::= "a"\nl0 ::= "b"*\nn1 ::= "c" root?', ["abbc", "acac"], ["ab"]),
    ('root ::= "#" [#] "::=" ', ["##::="], []),
    ('root ::= "a" dead | "b"\ndead ::= "x" dead', ["b"], ["a", "ax"]),
    ('\r\nroot ::= "a"\r\n  "b"\r\n', ["ab"], []),
]


@pytest.mark.parametrize("source, yes, no", READ, ids=[case[0] for case in READ])
def test_what_is_read(source: str, yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not matches(source, text)] == []
    assert [text for text in no if matches(source, text)] == []


REFUSED = [
    ('root ::= "a"\n x ::= ', 2, 8, "found the end, expected a text"),
    ("root ::= ()", 1, 11, "found ')', expected a text"),
    ('root ::= x\n\ny ::= "a"', 1, 10, "'x' is not defined"),
    ('root ::= "a"\nroot ::= "b"', 2, 1, "'root' is defined twice"),
    ('start ::= "a"', 1, 14, "no rule 'root'"),
    ('"a" root ::= "b"', 1, 1, """found '"', expected a rule 'name ::='"""),
    ('root ::= "a\n"', 1, 10, "not closed on its line"),
    ('root ::= "a', 1, 10, "not closed on its line"),
    ("root ::= [a", 1, 10, "not closed on its line"),
    ("root ::= []", 1, 10, "matches nothing"),
    (r"root ::= [^\x00-\U0010FFFF]", 1, 10, "matches nothing"),
    ("root ::= [z-a]", 1, 11, "runs backwards"),
    ('root ::= ("a"', 1, 14, "found the end, expected ')'"),
    ('root ::= "a")', 1, 13, "no '(' is open"),
    ('root ::= "a" $', 1, 14, "found '$', expected a text"),
    ('root ::= * "a"', 1, 10, "found '*', expected a text"),
    ('root ::= "a"** ', 1, 14, "'*' repeats a repetition"),
    ('root ::= "a"{,3}', 1, 14, "found ',', expected a number"),
    ('root ::= "a"{1;3}', 1, 15, "found ';', expected ',' or '}'"),
    ('root ::= "a"{3,1}', 1, 14, "at least 3 and at most 1"),
    ('root ::= "a"{99999999}', 1, 14, f"may go up to {MAX_SIZE}"),
    ('root ::= ("a"{1000}){1000}', 1, 21, "positions once this is written out"),
    ('root ::= "a"{15000}\nb ::= "b"{15000}', 2, 1, "with 'b' the grammar has"),
    (r'root ::= "\d"', 1, 11, r"no escape \d"),
    (r'root ::= "\xZ1"', 1, 11, r"\x needs 2 hexadecimal digits"),
    (r'root ::= "\u12"', 1, 11, r"\u needs 4 hexadecimal digits"),
    (r"root ::= [\uD800]", 1, 11, "no character D800"),
    (r"root ::= [\UFFFFFFFF]", 1, 11, "no character FFFFFFFF"),
    ('root ::= "\\', 1, 11, "no escape"),
    ('root ::= "a" (= "b")', 1, 14, "look-ahead '(= ...)' is not supported"),
    ("root ::= <[7]>", 1, 10, "tokens by id or name"),
    ("root ::= !<think>", 1, 10, "tokens by id or name"),
    ("root ::= " + "(" * 65 + '"a"' + ")" * 65, 1, 74, "nested more than 64 deep"),
]


@pytest.mark.parametrize("source, line, column, words", REFUSED, ids=[case[0][:40] for case in REFUSED])
def test_what_is_refused_and_where(source: str, line: int, column: int, words: str) -> None:
    with pytest.raises(GrammarCompileError) as caught:
        parse_ebnf(source)
    message = str(caught.value)
    assert message.startswith(f"grammar, line {line}, column {column}: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize("source", ["root ::= root", 'root ::= "a" root', "root ::= a b\na ::= b\nb ::= a"])
def test_a_grammar_that_no_text_satisfies(backend: GrammarBackend, source: str) -> None:
    with pytest.raises(GrammarCompileError, match="nothing satisfies it"):
        compile_grammar(backend, GrammarSpec.grammar(source))


HOSTILE = {
    "parentheses": "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000,
    "open parentheses": "root ::= " + "(" * 10_000,
    "rules": "\n".join(f"a{i} ::= a{i + 1}" for i in range(10_000)),
    "counts": 'root ::= "a"{1000}{1000}',
    "one count": 'root ::= "a"{1000000000000}',
    "counts of counts": "root ::= " + "(" * 60 + '"a"' + "){9}" * 60,
    "line ends": "\n" * 900_000,
    "spaces": " " * 900_000,
    "one name": "a" * 900_000,
    "names": "a " * 400_000,
    "no end": 'root ::= "' + "a" * 900_000,
    "comments": "#\n" * 400_000,
    "nothing": "",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sources_end_with_one_error(backend: GrammarBackend, name: str) -> None:
    with pytest.raises(GrammarCompileError) as caught:
        compile_grammar(backend, GrammarSpec.grammar(HOSTILE[name]), timeout_s=10)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 600
    assert "not compiled within" not in str(caught.value)


LARGE = {
    "a chain of rules": "\n".join(
        ["root ::= a0", *(f"a{i} ::= a{i + 1}" for i in range(1_998)), 'a1998 ::= "a"']
    ),
    "a chain the other way": "\n".join(
        ['a0 ::= "a"', *(f"a{i + 1} ::= a{i}" for i in range(1_998)), "root ::= a1998"]
    ),
    "a recursive chain": "\n".join(
        ["root ::= a0", *(f'a{i} ::= "a" a{i + 1} | "a"' for i in range(500)), 'a500 ::= "a" root']
    ),
    "doubling": "\n".join(
        ["root ::= a0", *(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(1_000)), 'a1000 ::= "a"']
    ),
    "many words": "root ::= word+\nword ::= " + " | ".join(f'"a{i}"' for i in range(1_000)),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_grammars_compile(backend: GrammarBackend, name: str) -> None:
    matcher = backend.matcher(compile_grammar(backend, GrammarSpec.grammar(LARGE[name])))
    assert matcher.accept(backend.vocabulary.tokens.index(b"a"))


def assert_equal_walk(backends: dict[str, GrammarBackend], source: str, seed: int, num_moves: int) -> None:
    """Walk at random, back and forth; rows are filled at some places only, in some order."""
    rng = random.Random(seed)
    vocabulary = backends["reference"].vocabulary
    spec = GrammarSpec.grammar(source)
    matchers = {name: backend.matcher(backend.compile(spec)) for name, backend in backends.items()}
    num_tokens = 0
    for _ in range(num_moves):
        legal = row_of(matchers["reference"], vocabulary)
        for name in ("xgrammar", "llguidance"):
            if rng.random() < 0.7:
                assert row_of(matchers[name], vocabulary) == legal
        if num_tokens and (not legal or rng.random() < 0.3):
            num_back = rng.randint(1, min(num_tokens, 4))
            for matcher in matchers.values():
                matcher.rollback(num_back)
            num_tokens -= num_back
        elif legal:
            token = rng.choice(legal)
            assert [matcher.accept(token) for matcher in matchers.values()] == [True] * 3
            num_tokens += 1


def row_of(matcher: GrammarMatcher, vocabulary: Vocabulary) -> list[int]:
    """The legal ids; none where the grammar ended or cannot go on."""
    bitmask = np.full((1, vocabulary.num_words), -1, np.int32)
    if matcher.finished:
        return []
    try:
        matcher.fill_bitmask(bitmask, 0)
    except DeadEndError:
        assert not bitmask.any()
    found: list[int] = np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little")).tolist()
    return found


@pytest.mark.parametrize("name", GRAMMARS)
def test_all_backends_enforce_the_same_language(backends: dict[str, GrammarBackend], name: str) -> None:
    for seed in range(4):
        assert_equal_walk(backends, GRAMMARS[name], seed, 60)


@settings(max_examples=100, deadline=None)
@given(source=grammars(), seed=st.integers(0, 2**32))
def test_all_backends_agree_on_any_grammar(backends: dict[str, GrammarBackend], source: str, seed: int) -> None:
    errors = set()
    for backend in backends.values():
        try:
            backend.compile(GrammarSpec.grammar(source))
        except GrammarCompileError as error:
            errors.add(str(error))
        else:
            errors.add("")
    assert len(errors) == 1
    if errors == {""}:
        assert_equal_walk(backends, source, seed, 25)


def test_a_rollback_does_not_leave_the_mask_of_a_sibling(backend: GrammarBackend) -> None:
    """llguidance remembers its last mask by the number of lexemes, also behind a rollback."""
    matcher = backend.matcher(backend.compile(GrammarSpec.grammar('root ::= s "a"\ns ::= "a"+ | s "b"')))
    a, b, ab = map(backend.vocabulary.tokens.index, (b"a", b"b", b"ab"))
    assert matcher.accept_prefix([a, a, a]) == 3
    assert ab in row_of(matcher, backend.vocabulary)
    matcher.rollback(1)
    assert matcher.accept(b)
    assert row_of(matcher, backend.vocabulary) == [a, b]


def test_a_grammar_does_not_change_the_masks_of_the_next(vocabulary: Vocabulary) -> None:
    """xgrammar's cache takes the rules in the circle of the first grammar for those of the second."""
    sources = [
        'root ::= "ab" | x+\nx ::= "" | "a" | "a"+ | "a" | "ab"',
        'root ::= ("a"+)* | "a"',
        'root ::= "a" y | (y | "b")+\ny ::= "b"? | "ab" [ab]',
        'root ::= "a" | ("b"+)+',
    ]
    backend, reference = XGrammarBackend(vocabulary), ReferenceBackend(vocabulary)
    for source in sources:
        assert_equal_walk({"xgrammar": backend, "llguidance": backend, "reference": reference}, source, 0, 30)


def test_documents(backend: GrammarBackend) -> None:
    """Longer texts than a random walk ever reaches."""
    vocabulary = backend.vocabulary
    matcher = backend.matcher(backend.compile(GrammarSpec.grammar(JSON)))
    text = b'{"a": [1, 2, {"b": null, "ab": -1.5e12}, []], "c": "\\n abab", "d": {}}'
    tokens = [vocabulary.tokens.index(bytes([byte])) for byte in text]

    assert matcher.accept_prefix([*tokens, vocabulary.stop_ids[1]]) == len(tokens) + 1
