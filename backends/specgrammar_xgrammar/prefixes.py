"""The first characters of what follows a rule, where it pays to write them into the rule.

Most tokens that run over the end of a JSON string go on with a comma or a bracket. So the string gets variants
that end with those: `",` and `"}` are then inside. Only punctuation is taken: words differ from place to place,
so there would be too many variants. No variant ends with white space, since most tokens that begin with white
space would run over its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from specgrammar.language.regex import Alt, Chars, Lexeme, Node, Ref, Repeat, Seq
from specgrammar_xgrammar.rests import BORDER, Mark, Rest, Rests

Prefix: TypeAlias = tuple[Node, ...]
"""Characters, and bounded white space between them; `()` for none."""

REACH = 2
"""Most characters of a prefix: `,"` of compact JSON. More make the fills no cheaper."""
_MAX_WAYS = 3
"""Most prefixes at one place. A matcher is in all those variants at a time."""
_MAX_DEPTH = 40
"""Of choices within what follows."""
_WIDE = 128
"""So many characters are a class for any text; only where one may end a rule, many tokens run over the end."""
_LARGE = 512
"""Positions of a rule whose variants cost compile time: a string of bounded length has a rule per character."""


class Prefixes:
    """Finds them.

    Attributes:
        large_too: whether rules with many positions have variants; those with white space never do.
    """

    def __init__(self, rules: Mapping[str, Node], rests: Rests, reach: int, large_too: bool) -> None:
        """With the most characters of a prefix; 0 for no prefixes."""
        self._rules = rules
        self._rests = rests
        self._reach = reach
        self.large_too = large_too
        self._depth = 0
        self._found: dict[Rest | None, dict[Prefix, Rest | None]] = {}
        self._open = _find_open(rules) if reach else set[str]()

    def split(self, name: str, rest: Rest | None) -> dict[Prefix, Rest | None]:
        """The prefixes of what follows a rule at some place, each with what is left behind it."""
        found = self._of(rest) if name in self._open else {}
        if not found or () in found or len(found) > _MAX_WAYS:
            return {(): rest}
        if num_positions(self._rules[name]) > _LARGE:
            has_gap = any(isinstance(item, Repeat) for prefix in found for item in prefix)
            if has_gap or not self.large_too:
                return {(): rest}
        return found

    def _of(self, rest: Rest | None) -> dict[Prefix, Rest | None]:
        """Empty where they are not known."""
        if rest not in self._found:
            self._found[rest] = {}
            if self._depth < _MAX_DEPTH:
                self._depth += 1
                self._found[rest] = self._read(rest)
                self._depth -= 1
        return self._found[rest]

    def _read(self, rest: Rest | None) -> dict[Prefix, Rest | None]:
        prefix: list[Node] = []
        num_left = self._reach
        while rest is not None and num_left:
            match rest.head:
                case Mark() as mark:
                    if prefix and mark is BORDER:
                        break  # what was written into a rule is passed on whole or not at all
                    rest = rest.tail
                case Chars() as found if not _is_word(found):
                    prefix.append(found)
                    num_left -= 1
                    rest = rest.tail
                case Repeat(Chars() as item, 0, int()) as gap if _is_space(item):
                    prefix.append(gap)
                    rest = rest.tail
                case Repeat(item, 1, most):
                    more = None if most is None else most - 1
                    tail = rest.tail if more == 0 else self._rests.join(Repeat(item, 0, more), rest.tail)
                    rest = self._rests.push(item, tail)
                case Chars() | Ref():
                    break
                case Repeat(_, least, _) if least:
                    break
                case _ if prefix:
                    break
                case _:
                    return self._merge(map(self._of, self._rests.ways(rest)))
        while prefix and _is_space(prefix[-1]):
            rest = self._rests.join(prefix.pop(), rest)
        return {tuple(prefix): rest}

    def _merge(self, parts: Iterable[dict[Prefix, Rest | None]]) -> dict[Prefix, Rest | None]:
        together: dict[Prefix, list[Rest | None]] = {}
        for part in parts:
            if not part:
                return {}
            for prefix, rest in part.items():
                together.setdefault(prefix, []).append(rest)
        return {prefix: self._rests.fork(rests) for prefix, rests in together.items()}


def _find_open(rules: Mapping[str, Node]) -> set[str]:
    """The rules at whose end, or a character or two before it, any text may stand."""
    found: set[str] = set()
    ends_with: dict[str, list[str]] = {}
    for name, node in rules.items():
        last: set[str] = set()
        if _find_wide(node, 2, last) < 0:
            found.add(name)
        for other in last:
            ends_with.setdefault(other, []).append(name)
    pending = list(found)
    while pending:
        more = set(ends_with.get(pending.pop(), ())) - found
        found |= more
        pending += more
    return found


def _find_wide(node: Node, num_left: int, last: set[str]) -> int:
    """-1 if a wide class is among the last `num_left` characters; else how many are left of them.

    A rule that stands there is added to `last`, and what stands before it is not looked at.
    """
    match node:
        case Chars(ranges):
            return -1 if sum(high - low + 1 for low, high in ranges) >= _WIDE else num_left - 1
        case Seq(items):
            for item in reversed(items):
                if num_left <= 0:
                    break
                num_left = _find_wide(item, num_left, last)
            return num_left
        case Lexeme(item):
            return _find_wide(item, num_left, last)
        case Alt(items):
            found = [_find_wide(item, num_left, last) for item in items]
            return -1 if -1 in found else max(found, default=num_left)
        case Repeat(item, least, _):
            inner = _find_wide(item, num_left, last)
            return inner if inner < 0 or least else num_left
        case Ref(name):
            last.add(name)
            return 0
    raise TypeError(f"no part of a grammar: {node!r}")


def num_positions(node: Node) -> int:
    """Characters and references of a node with its bounded repetitions written out."""
    match node:
        case Seq(items) | Alt(items):
            return sum(map(num_positions, items))
        case Lexeme(item):
            return num_positions(item)
        case Repeat(item, least, most):
            return num_positions(item) * max(least if most is None else most, 1)
        case _:
            return 1


def _is_word(found: Chars) -> bool:
    """Whether a letter or a digit is among the characters."""
    return any(
        low <= last and first <= high
        for low, high in found.ranges
        for first, last in ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A))
    )


def _is_space(node: Node) -> bool:
    if isinstance(node, Repeat):
        return _is_space(node.item)
    return isinstance(node, Chars) and all(high <= 0x20 for _, high in node.ranges)
