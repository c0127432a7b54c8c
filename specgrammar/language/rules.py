"""Context-free grammars as rules over the nodes of `language.regex`.

This is what JSON Schemas are compiled to, once; a backend prints it in its own notation, so every backend
enforces the same language.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from specgrammar.language.regex import EMPTY, Alt, Lexeme, Node, Ref, Repeat, Seq


@dataclass(frozen=True)
class Grammar:
    """Rules by name. Every `Ref` has its rule, and every rule can produce some text.

    Attributes:
        rules: names are `[a-z][a-z0-9_]*`.
        start: the name of the first rule.
    """

    rules: Mapping[str, Node]
    start: str


def seq(*items: Node) -> Node:
    """One after the other, flattened."""
    flat: list[Node] = []
    for item in items:
        flat += item.items if isinstance(item, Seq) else (item,)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(*items: Node | None) -> Node | None:
    """One of those that are not None, flattened, without duplicates; None if there is none."""
    flat: dict[Node, None] = {}
    for item in items:
        if item is not None:
            flat.update(dict.fromkeys(item.items if isinstance(item, Alt) else (item,)))
    if not flat:
        return None
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def repeat(item: Node, least: int, most: int | None) -> Node:
    """The item from `least` to `most` times."""
    return EMPTY if most == 0 else Repeat(item, least, most)


def optional(item: Node | None) -> Node:
    """The item or nothing."""
    return EMPTY if item is None else Repeat(item, 0, 1)


def has_parts(node: Node) -> bool:
    """Whether the node holds references or lexemes; else it is text only."""
    match node:
        case Ref() | Lexeme():
            return True
        case Seq(items) | Alt(items):
            return any(map(has_parts, items))
        case Repeat(item, _, _):
            return has_parts(item)
        case _:
            return False


def refs(node: Node) -> Iterator[str]:
    """The rules that a node refers to, by name."""
    pending = [node]
    while pending:
        match pending.pop():
            case Ref(name):
                yield name
            case Seq(items) | Alt(items):
                pending += items
            case Repeat(item, _, _):
                pending.append(item)


def make_grammar(rules: Mapping[str, Node | None], start: str) -> Grammar | None:
    """Keep what can produce text and is reached from the start; None if the start cannot.

    Without this a rule such as `a: "x" a` would lead a model into a place that it can never leave.
    """
    productive: set[str] = set()
    waiting = dict(rules)
    while done := [name for name in reversed(waiting) if _add_if_productive(name, waiting[name], productive)]:
        for name in done:
            del waiting[name]
    if start not in productive:
        return None
    reached: dict[str, Node] = {}
    pending = [start]
    while pending:
        name = pending.pop()
        node = _prune(rules[name], productive)
        if name not in reached and node is not None:
            reached[name] = node
            pending += refs(node)
    return Grammar(reached, start)


def _add_if_productive(name: str, node: Node | None, productive: set[str]) -> bool:
    if _prune(node, productive) is None:
        return False
    productive.add(name)
    return True


def _prune(node: Node | None, productive: AbstractSet[str]) -> Node | None:
    match node:
        case Ref(name):
            return node if name in productive else None
        case Seq(items):
            kept = [_prune(item, productive) for item in items]
            return None if None in kept else Seq(tuple(item for item in kept if item is not None))
        case Alt(items):
            return alt(*(_prune(item, productive) for item in items))
        case Repeat(item, least, most):
            inner = _prune(item, productive)
            if inner is None:
                return EMPTY if least == 0 else None
            return Repeat(inner, least, most)
        case _:
            return node
