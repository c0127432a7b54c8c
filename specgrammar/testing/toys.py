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


def specs_for(facts: BackendFacts) -> tuple[GrammarSpec, ...]:
    """Small grammars over the texts of `VOCABULARY`, of every kind that a backend says it compiles."""
    specs = [
        GrammarSpec.choice(["ab", "abab", "", "abc12"]),
        GrammarSpec.choice(["a", "ab", "abc", "bc12"]),
        GrammarSpec.regex("(ab)+c"),
        GrammarSpec.regex("a{2,5}(b|c)?"),
        GrammarSpec.regex("[abc12]*"),
        GrammarSpec.json_schema(_SCHEMA),
    ]
    syntaxes = {"ebnf": _EBNF, "lark": _LARK}
    specs += [GrammarSpec.grammar(syntaxes[name]) for name in sorted(facts.grammar_syntaxes & set(syntaxes))]
    return tuple(spec for spec in specs if spec.kind in facts.kinds)


def text_of(token: int) -> str:
    """A token for people: its text and its id."""
    if not 0 <= token < VOCABULARY.vocab_size:
        return f"id {token}"
    name = {STOP: "stop", PAD: "padding", SPECIAL: "special"}.get(token)
    return f"{name} ({token})" if name else f"{TEXTS[token].decode()!r} ({token})"


def texts_of(tokens: Iterable[int]) -> str:
    """Several tokens for people."""
    return f"[{', '.join(map(text_of, tokens))}]"


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
