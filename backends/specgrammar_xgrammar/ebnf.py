"""Grammars in xgrammar's EBNF.

Each rule says what may come behind it, as a look-ahead `(= [...])`. It changes no mask: xgrammar uses it to
decide beforehand about tokens that run over the end of the rule (in `[a-z]+ " "*` every token with a space in
front is one; 10 ms a fill without, 15 us with it).
"""

from __future__ import annotations

import re

from specgrammar.language.follow import Follow
from specgrammar.language.regex import Alt, Chars, Node, Ref, Repeat, Seq
from specgrammar.language.rules import Grammar
from specgrammar_xgrammar.linear import right_linear
from specgrammar_xgrammar.prefixes import REACH

_NAME = re.compile(r"(?<![\w\\])[a-z]\w*")


def to_ebnf(grammar: Grammar, reach: int = REACH) -> str:
    """One line per rule; the start rule is `root`, as xgrammar wants it. `reach`: see `right_linear`."""
    linear = right_linear(grammar, reach)
    behind = Follow(linear).rules
    return "\n".join(f"{name} ::= {_print(node)}{_ahead(behind[name])}" for name, node in linear.rules.items())


def loops_are_simple(ebnf: str) -> bool:
    """Whether no rule leads back to itself through another one.

    xgrammar's cache of compiled rules, which spans grammars, takes some rules in such circles for others that
    it knows, and then masks hold illegal tokens. Without circles, none of 10,000 random grammars was hit.
    """
    num_used: dict[str, int] = {}
    users: dict[str, list[str]] = {}
    for line in ebnf.splitlines():
        name, body = line.split(" ::= ", 1)
        used = set(_NAME.findall(body)) - {name}
        num_used[name] = len(used)
        for other in used:
            users.setdefault(other, []).append(name)
    free = [name for name, count in num_used.items() if not count]
    for name in free:
        for user in users.get(name, ()):
            num_used[user] -= 1
            if not num_used[user]:
                free.append(user)
    return len(free) == len(num_used)


def _print(node: Node) -> str:
    match node:
        case Alt(items):
            return "(" + " | ".join(map(_print, items)) + ")"
        case Seq(items):
            return " ".join(map(_print, items)) or '""'
        case Chars():
            return _class(node)
        case Ref(name):
            return name
        case Repeat(Ref(name), least, most):
            return f"({name}){{{least}}}" if least == most else f"({name}){{{least},{most}}}"
    raise TypeError(f"no part of a linear rule: {node!r}")


def _ahead(behind: Chars | None) -> str:
    return f" (= {_class(behind)})" if behind else ""


def _class(found: Chars) -> str:
    return "[" + "".join(map(_range, found.ranges)) + "]"


def _range(ends: tuple[int, int]) -> str:
    low, high = ends
    return _char(low) if low == high else f"{_char(low)}-{_char(high)}"


def _char(code_point: int) -> str:
    return f"\\U{code_point:08X}"
