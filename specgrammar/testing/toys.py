"""The world that checks play in: a small vocabulary, small grammars, and what the links of a tree say."""

from __future__ import annotations

from collections.abc import Iterable

from specgrammar.protocols.grammar import BackendFacts, GrammarSpec, Vocabulary
from specgrammar.trees.tree import HostTree

TEXTS = (
    b"a",
    b"b",
    b"c",
    b"ab",
    b"abc",
    b"bc",
    b"{",
    b"}",
    b'"',
    b'"a',
    b'":',
    b": ",
    b"1",
    b"2",
    b"12",
    b", ",
)
STOP, PAD, SPECIAL = len(TEXTS), len(TEXTS) + 1, len(TEXTS) + 2
VOCABULARY = Vocabulary((*TEXTS, b"", b"", b""), stop_ids=(STOP,), special_ids=frozenset({STOP, PAD, SPECIAL}))
"""19 ids: 16 of text (some of several bytes, so that one text has several tokenisations), one stop token."""

OTHER_STOP, CONTROL = len(TEXTS) + 3, len(TEXTS) + 4
TWO_STOPS = Vocabulary(
    (*VOCABULARY.tokens, b"c", b"a", "é".encode(), b"\xc3", b"\xa9"),
    stop_ids=(STOP, OTHER_STOP),
    special_ids=frozenset({STOP, PAD, SPECIAL, OTHER_STOP, CONTROL}),
)
"""The same with what real vocabularies have: a second stop id and a special id that look like texts, and ids
that are half a character."""

BYTE_STOP = 256
BYTES = Vocabulary(
    (*(bytes([byte]) for byte in range(256)), b""),
    stop_ids=(BYTE_STOP,),
    special_ids=frozenset({BYTE_STOP}),
)
"""One id for each byte, so that ids spell any text, and one stop token."""

GRAMMARS = (
    GrammarSpec.regex("(ab)+c"),
    GrammarSpec.regex("a{2,5}(b|c)?"),
    GrammarSpec.choice(["a", "ab", "abc", "bc12"]),
    GrammarSpec.regex("[abc12]*"),
)

_EBNF = 'root ::= "a" root "b" | "12"?'
_LARK = 'start: "a" start "b" | "12"?'
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 12]}},
    "required": ["a"],
    "additionalProperties": False,
}
_OTHER_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}


def specs_for(facts: BackendFacts) -> tuple[GrammarSpec, ...]:
    """Small grammars over the texts of `VOCABULARY`, of every kind that a backend says it compiles.

    Those of JSON have dead ends: no id spells a single space.
    """
    specs = [
        GrammarSpec.choice(["ab", "abab", "", "abc12"]),
        GrammarSpec.choice(["a", "ab", "abc", "bc12"]),
        GrammarSpec.regex("(ab)+c"),
        GrammarSpec.regex("a{2,5}(b|c)?"),
        GrammarSpec.regex("[abc12]*"),
        GrammarSpec.json_schema(_SCHEMA),
        GrammarSpec.json_schema(_OTHER_SCHEMA, whitespace="flexible"),
        GrammarSpec.json_object(whitespace="compact"),
    ]
    syntaxes = {"ebnf": _EBNF, "lark": _LARK}
    specs += [GrammarSpec.grammar(syntaxes[name]) for name in sorted(facts.grammar_syntaxes & set(syntaxes))]
    return tuple(spec for spec in specs if spec.kind in facts.kinds)


def for_reference(spec: GrammarSpec) -> GrammarSpec:
    """What the reference compiles instead of one of `specs_for`: it reads no Lark."""
    return GrammarSpec.grammar(_EBNF) if spec.source == _LARK else spec


def spelling(facts: BackendFacts, *texts: str) -> GrammarSpec | None:
    """The grammar of a few texts of letters and digits, of a kind that a backend compiles; None if none can."""
    quoted = " | ".join(f'"{text}"' for text in texts)
    return _first_of(
        facts,
        GrammarSpec.choice(texts),
        GrammarSpec.regex("|".join(texts)),
        ebnf=f"root ::= {quoted}",
        lark=f"start: {quoted}",
    )


def anything(facts: BackendFacts) -> GrammarSpec | None:
    """The grammar of all texts of a, b, c, 1 and 2, as `spelling` gives one."""
    return _first_of(facts, GrammarSpec.regex("[abc12]*"), ebnf="root ::= [abc12]*", lark="start: /[abc12]*/")


def _first_of(facts: BackendFacts, *specs: GrammarSpec, ebnf: str, lark: str) -> GrammarSpec | None:
    texts = {"ebnf": ebnf, "lark": lark}
    specs += tuple(GrammarSpec.grammar(texts[name]) for name in texts if name in facts.grammar_syntaxes)
    return next((spec for spec in specs if spec.kind in facts.kinds), None)


def text_of(token: int, vocabulary: Vocabulary = VOCABULARY) -> str:
    """A token for people: its text and its id."""
    if not 0 <= token < vocabulary.vocab_size:
        return f"id {token}"
    text = vocabulary.tokens[token]
    words = [repr(text.decode(errors="backslashreplace"))] if text else []
    if token in vocabulary.special_ids | set(vocabulary.stop_ids):
        words.insert(0, "stop" if token in vocabulary.stop_ids else "padding" if token == PAD else "special")
    return f"{' '.join(words)} ({token})"


def texts_of(tokens: Iterable[int], vocabulary: Vocabulary = VOCABULARY) -> str:
    """Several tokens for people."""
    return f"[{', '.join(text_of(token, vocabulary) for token in tokens)}]"


def path_to(tree: HostTree, first: int, node: int) -> list[int]:
    """The draft tokens from behind the root to a node (local number), by the links alone."""
    tokens: dict[int, list[int]] = {0: []}
    todo = [0]
    while todo:
        parent = todo.pop()
        child = int(tree.retrieve_next_token[first + parent])
        while child >= 0:
            tokens[child] = [*tokens[parent], int(tree.draft_tokens[first + child])]
            todo.append(child)
            child = int(tree.retrieve_next_sibling[first + child])
    return tokens[node]
