"""Grammars in xgrammar's EBNF.

xgrammar caches, per position of a rule, which tokens are legal. A token that runs over the end of a rule is
looked at anew at every fill, so a repetition that is a rule of its own makes every token one of those (45 ms
a fill with 49k tokens; 5 µs otherwise). Parts without references are therefore written right-linear: what
follows a repetition is an alternative inside its rule, `r: '"' | char r` instead of `char* '"'`.
"""

from __future__ import annotations

from specgrammar.language.regex import Alt, Chars, Lexeme, Node, Ref, Repeat, Seq
from specgrammar.language.rules import Grammar, has_ref

_START = "root"
_GROUP = 64
"""Bounded repetitions longer than this are written as groups of as many, so that the number of rules (20 ms of
compilation each, once per process) does not grow with the bound."""


def to_ebnf(grammar: Grammar) -> str:
    """One line per rule; the start rule is `root`, as xgrammar wants it."""
    linear = _Linear()
    for name, node in grammar.rules.items():
        linear.rules[name] = _expression(node) if has_ref(node) else linear.then(node, "")
    return "\n".join(
        f"{name} ::= {body or _EMPTY}" for name, body in {_START: grammar.start, **linear.rules}.items()
    )


_EMPTY = '""'


def _expression(node: Node) -> str:
    match node:
        case Ref(name):
            return name
        case Lexeme(item):
            return _expression(item)
        case Chars(ranges):
            return "[" + "".join(f"{_char(low)}-{_char(high)}" for low, high in ranges) + "]"
        case Seq(items):
            return "(" + " ".join(map(_expression, items)) + ")" if items else _EMPTY
        case Alt(items):
            return "(" + " | ".join(map(_expression, items)) + ")"
        case Repeat(item, least, most):
            return f"({_expression(item)}){{{least},{'' if most is None else most}}}"
    raise TypeError(f"no part of a grammar: {node!r}")


def _char(code_point: int) -> str:
    return f"\\U{code_point:08X}"


class _Linear:
    """Writes nodes without references as right-linear rules."""

    def __init__(self) -> None:
        self.rules: dict[str, str] = {}
        self._names: dict[str, str] = {}

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
                self.rules[loop] = self._choice([rest, self.then(item, loop)])
                return self._exactly(item, least, loop)
            case _:
                return f"{_expression(node)} {rest}".rstrip()

    def _choice(self, options: list[str]) -> str:
        return "(" + " | ".join(option or _EMPTY for option in options) + ")"

    def _name(self, expression: str) -> str:
        """A rule for an expression that is used more than once."""
        if not expression or expression.isidentifier():
            return expression
        if expression not in self._names:
            name = f"n{len(self.rules)}"
            self._names[expression] = name
            self.rules[name] = expression
        return self._names[expression]

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
        tail = ""
        for _ in range(_GROUP):
            tail = self._name(self.then(item, tail))
        return tail
