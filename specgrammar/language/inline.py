"""Rules that are texts only, written as one node each.

What a backend is fast with is a node without references: it becomes one lexeme, or one automaton. With the
characters of a string in a rule of their own, a mask within it costs xgrammar 20 ms; inlined, 20 us.
"""

from __future__ import annotations

from collections.abc import Mapping

from specgrammar.language.follow import first_of
from specgrammar.language.regex import Alt, Node, Ref, Repeat, Seq, size
from specgrammar.language.rules import alt, refs, seq

MAX_TEXT = 2_000
"""Most positions of a text that is put together, so that a chain of rules cannot double its way up."""
MAX_GAP = 64
"""Most positions of a text that also recursive rules take in: if it may be empty, as white space, its own rule
would end before every token."""


def inline_texts(rules: Mapping[str, Node]) -> dict[str, Node]:
    """The same rules. Those that lead to no recursion refer to nothing any more, unless they got too large."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    num_waiting: dict[str, int] = {}
    for name, node in rules.items():
        used = set(refs(node))
        num_waiting[name] = len(used)
        for other in used:
            users[other].append(name)
    texts: dict[str, Node] = {}
    sizes: dict[str, int] = {}
    ready = [name for name, count in num_waiting.items() if not count]
    while ready:
        name = ready.pop()
        if sum(sizes[other] for other in refs(rules[name])) > MAX_TEXT:
            continue
        node = _inlined(rules[name], texts)
        if size(node) > MAX_TEXT:
            continue
        texts[name], sizes[name] = node, size(node)
        for user in users[name]:
            num_waiting[user] -= 1
            if not num_waiting[user]:
                ready.append(user)
    gaps = {name: node for name, node in texts.items() if sizes[name] <= MAX_GAP and first_of(node)[1]}
    return {name: texts[name] if name in texts else _inlined(node, gaps) for name, node in rules.items()}


def _inlined(node: Node, texts: Mapping[str, Node]) -> Node:
    match node:
        case Ref(name):
            return texts.get(name, node)
        case Seq(items):
            return seq(*(_inlined(item, texts) for item in items))
        case Alt(items):
            found = alt(*(_inlined(item, texts) for item in items))
            assert found is not None, "an Alt has items"
            return found
        case Repeat(item, least, most):
            return Repeat(_inlined(item, texts), least, most)
        case _:
            return node
