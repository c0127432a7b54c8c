"""Rules for xgrammar: the same language, written so that few tokens run over the end of a rule.

xgrammar caches, per position of a rule, which tokens are legal. A token that runs over the end of the rule is
looked at anew at every fill. So

- a repetition is no rule of its own: what follows it is an alternative inside its rule, `r: '"' | char r`
  instead of `char* '"'` (with 49k tokens 5 us a fill and not 45 ms);
- the first characters of what follows a rule are written into a variant of the rule, see `prefixes` (inside a
  string, with 128k tokens, 1.6 us a fill and not 10).

Every rule that is written is a choice of sequences of characters and references, and its name stands for what
is still to be read, up to the end of the rule or variant that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator

from specgrammar.language.regex import Alt, Chars, Node, Ref, Repeat, Seq
from specgrammar.language.rules import Grammar
from specgrammar_xgrammar.prefixes import REACH, Prefix, Prefixes, num_positions
from specgrammar_xgrammar.rests import BORDER, SHARED, Fork, Mark, Rest, Rests

_START = "root"
_GROUP = 64
"""Bounded repetitions longer than this are written as groups of as many, so that the number of rules (20 ms of
compilation each, once per process) does not grow with the bound."""
_SHORT = 4
"""So many characters or repetitions are written out where they are used, not made a rule."""
_MAX_GROWTH = 2.5
_FREE = 500
"""What may be written with variants: so many times the positions of the grammar, and so many more."""


def right_linear(grammar: Grammar, reach: int = REACH) -> Grammar:
    """The same language in such rules; the start is `root`, which no rule refers to.

    Args:
        grammar: any.
        reach: the most characters of what follows that are written into a rule; 0 for no variants.
    """
    most = int(_MAX_GROWTH * sum(map(num_positions, grammar.rules.values()))) + _FREE
    for less_reach, large_too in ((reach, True), (1, True), (reach, False)) if reach else ():
        found = _Linear(grammar, less_reach, large_too).write(most)
        if found is not None:
            return found
    plain = _Linear(grammar, 0, False).write(None)
    assert plain is not None, "nothing limits it"
    return plain


class _Linear:
    """Writes the rules of one grammar."""

    def __init__(self, grammar: Grammar, reach: int, large_too: bool) -> None:
        self._grammar = grammar
        self._rests = Rests()
        self._prefixes = Prefixes(grammar.rules, self._rests, reach, large_too)
        self._names: dict[Rest | None, Ref] = {}
        self._pending: list[tuple[str, Rest | None]] = []

    def write(self, most: int | None) -> Grammar | None:
        """The rules; None if they have more than `most` positions."""
        rules: dict[str, Node] = {}
        num_written = 0
        self._pending.append((_START, self._rests.push(self._grammar.rules[self._grammar.start], None)))
        while self._pending:
            name, rest = self._pending.pop()
            options = dict.fromkeys(self._options(rest))
            options.pop((Ref(name),), None)  # reading nothing, again
            rules[name] = Alt(tuple(map(Seq, options)))
            num_written += sum(map(len, options))
            if most is not None and num_written > most:
                return None
        return Grammar(rules, _START)

    def _options(self, rest: Rest | None) -> Iterator[tuple[Node, ...]]:
        """The sequences of a rule. A choice behind something else is a rule of its own."""
        parts: list[Node] = []
        while rest is not None:
            match rest.head:
                case Chars() as found:
                    parts.append(found)
                    rest = rest.tail
                case Mark() as mark:
                    if mark is SHARED and not _is_short(rest.tail):
                        parts.append(self._name(rest.tail))
                        break
                    rest = rest.tail
                case Ref(name):
                    variants = self._prefixes.split(name, rest.tail)
                    if len(variants) == 1:
                        ((prefix, rest),) = variants.items()
                        parts.append(self._variant(name, prefix))
                    elif parts:
                        parts.append(self._name(rest))
                        break
                    else:
                        for prefix, left in variants.items():
                            yield self._variant(name, prefix), *self._named(left)
                        return
                case Repeat(item, least, most) if least:
                    groups, single = divmod(least, _GROUP)
                    if groups:
                        parts.append(Repeat(self._group(item), groups, groups))
                    rest = rest.tail
                    if most != least:
                        rest = self._rests.join(Repeat(item, 0, None if most is None else most - least), rest)
                    if single > _SHORT:  # many numbers of digits end in the same rules
                        single, rest = 1, self._rests.share(self._rests.join(_exactly(item, single - 1), rest))
                    for _ in range(single):
                        rest = self._rests.push(item, rest)
                case _ if parts:
                    parts.append(self._name(rest))
                    break
                case Repeat(item, _, most) if most is not None and most > _GROUP:
                    yield from self._at_most(item, most, rest.tail)
                    return
                case _:
                    for way in self._rests.ways(rest):
                        if way is not None and isinstance(way.head, Fork):
                            yield (self._name(way),)
                        else:
                            yield from self._options(way)
                    return
        yield tuple(parts)

    def _variant(self, name: str, prefix: Prefix) -> Ref:
        """The rule that ends with the prefix."""
        rest: Rest | None = None
        for item in reversed(prefix):
            rest = self._rests.join(item, rest)
        if rest is not None:
            rest = self._rests.join(BORDER, rest)
        return self._name(self._rests.push(self._grammar.rules[name], rest))

    def _at_most(self, item: Node, count: int, rest: Rest | None) -> Iterator[tuple[Node, ...]]:
        groups, single = divmod(count, _GROUP)
        group = self._group(item)
        for least, most, more in ((0, groups - 1, _GROUP - 1), (groups, groups, single)):
            tail = self._rests.join(Repeat(item, 0, more), rest) if more else rest
            yield *([Repeat(group, least, most)] if most else []), *self._named(tail)

    def _group(self, item: Node) -> Ref:
        rest: Rest | None = None
        for _ in range(_GROUP):
            rest = self._rests.push(item, rest)
        return self._name(rest)

    def _named(self, rest: Rest | None) -> tuple[Node, ...]:
        return () if rest is None else (self._name(rest),)

    def _name(self, rest: Rest | None) -> Ref:
        """The rule for what is still to be read."""
        while rest is not None and isinstance(rest.head, Mark):
            rest = rest.tail
        if rest not in self._names:
            self._names[rest] = Ref(f"n{len(self._names)}")
            self._pending.append((self._names[rest].name, rest))
        return self._names[rest]


def _exactly(item: Node, count: int) -> Repeat:
    return Repeat(item, count, count)


def _is_short(rest: Rest | None) -> bool:
    """Whether it is a few characters and then the end."""
    num_chars = 0
    while rest is not None and num_chars <= _SHORT:
        if isinstance(rest.head, Chars):
            num_chars += 1
        elif not isinstance(rest.head, Mark):
            return False
        rest = rest.tail
    return num_chars <= _SHORT
