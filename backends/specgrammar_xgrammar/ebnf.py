"""Grammars in xgrammar's EBNF.

xgrammar caches, per position of a rule, which tokens are legal. A token that runs over the end of a rule is
looked at anew at every fill, so a repetition that is a rule of its own makes every token one of those (45 ms
a fill with 49k tokens; 5 µs otherwise). Rules are therefore written right-linear: what follows a repetition is
an alternative inside its rule, `r: '"' | char r` instead of `char* '"'`.

Each rule also says what may come behind it, as a look-ahead `(= [...])`. It changes no mask: xgrammar uses it
to decide beforehand about tokens that run over the end (in `[a-z]+ " "*` every token with a space in front is
one; 10 ms a fill without, 15 us with it).
"""

from __future__ import annotations

import re

from specgrammar.language.follow import Follow
from specgrammar.language.regex import Alt, Chars, Lexeme, Node, Ref, Repeat, Seq
from specgrammar.language.rules import Grammar

_START = "root"
_NAME = re.compile(r"(?<![\w\\])[a-z]\w*")
_GROUP = 64
"""Bounded repetitions longer than this are written as groups of as many, so that the number of rules (20 ms of
compilation each, once per process) does not grow with the bound."""


def to_ebnf(grammar: Grammar) -> str:
    """One line per rule; the start rule is `root`, as xgrammar wants it."""
    behind = Follow(grammar).rules
    linear = _Linear()
    for name, node in grammar.rules.items():
        linear.ahead = _ahead(behind[name])
        linear.define(name, linear.then(node, ""))
    return "\n".join(f"{name} ::= {body}" for name, body in {_START: grammar.start, **linear.rules}.items())


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


def _ahead(behind: Chars | None) -> str:
    return f" (= {_class(behind)})" if behind else ""


_EMPTY = '""'


def _class(found: Chars) -> str:
    return "[" + "".join(f"{_char(low)}-{_char(high)}" for low, high in found.ranges) + "]"


def _char(code_point: int) -> str:
    return f"\\U{code_point:08X}"


class _Linear:
    """Writes nodes as right-linear rules.

    Attributes:
        rules: what was written, by name.
        ahead: the look-ahead of the rule that is being written. Rules that are made for it end where it ends.
    """

    def __init__(self) -> None:
        self.rules: dict[str, str] = {}
        self.ahead = ""
        self._names: dict[tuple[str, str], str] = {}

    def define(self, name: str, expression: str) -> None:
        """Write a rule."""
        self.rules[name] = (expression or _EMPTY) + self.ahead

    def then(self, node: Node, rest: str) -> str:
        """The expression for the node and then `rest`, an expression that may be empty."""
        match node:
            case Seq(items):
                for item in reversed(items):
                    rest = self.then(item, rest)
                return rest
            case Lexeme(item):
                return self.then(item, rest)
            case Alt(items):
                rest = self._name(rest)
                return self._choice([self.then(item, rest) for item in items])
            case Repeat(item, least, most) if most is not None:
                return self._exactly(item, least, self._at_most(item, most - least, rest))
            case Repeat(item, least, _):
                loop = f"l{len(self.rules)}"
                self.rules[loop] = ""  # taken; its body refers to itself
                self.define(loop, self._choice([rest, self.then(item, loop)]))
                return self._exactly(item, least, loop)
            case Ref(name):
                return f"{name} {rest}".rstrip()
            case Chars():
                return f"{_class(node)} {rest}".rstrip()
        raise TypeError(f"no part of a grammar: {node!r}")

    def _choice(self, options: list[str]) -> str:
        return "(" + " | ".join(option or _EMPTY for option in options) + ")"

    def _name(self, expression: str) -> str:
        """A rule for an expression that is used more than once."""
        if not expression or expression.isidentifier():
            return expression
        key = expression, self.ahead
        if key not in self._names:
            self._names[key] = f"n{len(self.rules)}"
            self.define(self._names[key], expression)
        return self._names[key]

    def _exactly(self, item: Node, count: int, rest: str) -> str:
        groups, single = divmod(count, _GROUP)
        for _ in range(single):
            rest = self._name(self.then(item, rest))
        return f"({self._group(item)}){{{groups}}} {rest}".rstrip() if groups else rest

    def _at_most(self, item: Node, count: int, rest: str) -> str:
        if count <= _GROUP:
            return self._chain(item, count, rest)
        groups, single = divmod(count, _GROUP)
        rest = self._name(rest)
        group = self._group(item)
        fewer = f"({group}){{0,{groups - 1}}} {self._chain(item, _GROUP - 1, rest)}"
        return self._choice([fewer, f"({group}){{{groups}}} {self._chain(item, single, rest)}".rstrip()])

    def _chain(self, item: Node, count: int, rest: str) -> str:
        rest = self._name(rest)
        tail = rest
        for _ in range(count):
            tail = self._name(self._choice([rest, self.then(item, tail)]))
        return tail

    def _group(self, item: Node) -> str:
        ahead, self.ahead = self.ahead, ""  # groups follow each other, so their rules end within the rule
        tail = ""
        for _ in range(_GROUP):
            tail = self._name(self.then(item, tail))
        self.ahead = ahead
        return tail
