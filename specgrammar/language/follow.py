"""What may come next at the end of a rule or a lexeme, wherever it stands: the sets that parsers call FOLLOW.

They are supersets (a rule's end leads to every place that uses the rule), so whoever relies on them may take a
text for possible that is not, and never the other way round.
"""

from __future__ import annotations

from specgrammar.language.regex import Alt, Chars, Lexeme, Node, Ref, Repeat, Seq, chars
from specgrammar.language.rules import Grammar, has_parts


class Follow:
    """The first characters behind each rule and each `Lexeme`; None where nothing can come.

    Attributes:
        rules: by name.
        lexemes: by what a `Lexeme` holds; one that stands in many places has the characters of them all.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._edges: list[list[int]] = []
        """From a point of the grammar to those before it that nothing is read between."""
        self._firsts: list[set[Chars]] = []
        """What can be read at a point."""
        self._begin = {name: self._point() for name in grammar.rules}
        self._end = {name: self._point() for name in grammar.rules}
        self._behind: dict[Node, int] = {}
        for name, node in grammar.rules.items():
            self._join(self._begin[name], self._walk(node, self._end[name]))
        self._spread()
        self.rules: dict[str, Chars | None] = {name: self._chars(point) for name, point in self._end.items()}
        self.lexemes: dict[Node, Chars | None] = {
            node: self._chars(point) for node, point in self._behind.items()
        }

    def _point(self) -> int:
        self._edges.append([])
        self._firsts.append(set())
        return len(self._edges) - 1

    def _join(self, before: int, after: int) -> None:
        """What can be read at `after` can be read at `before`."""
        self._edges[after].append(before)

    def _walk(self, node: Node, after: int) -> int:
        """The point before a node, with `after` behind it."""
        match node:
            case Ref(name):
                self._join(self._end[name], after)
                return self._begin[name]
            case Seq(items) if has_parts(node):
                text: tuple[Node, ...] = ()
                for item in reversed(items):
                    if has_parts(item):
                        after = self._walk(item, self._read(Seq(text), after) if text else after)
                        text = ()
                    else:
                        text = (item, *text)
                return self._read(Seq(text), after) if text else after
            case Alt(items) if has_parts(node):
                before = self._point()
                for item in items:
                    self._join(before, self._walk(item, after))
                return before
            case Repeat(item, least, most) if has_parts(node):
                end = self._point()
                before = self._walk(item, end)
                self._join(end, after)
                if most is None or most > 1:
                    self._join(end, before)
                if least:
                    return before
                skip = self._point()
                self._join(skip, before)
                self._join(skip, after)
                return skip
            case _:
                return self._read(node, after)

    def _read(self, node: Node, after: int) -> int:
        if isinstance(node, Lexeme):
            if node.item not in self._behind:
                self._behind[node.item] = self._point()
            self._join(self._behind[node.item], after)
        before = self._point()
        found, may_be_empty = first_of(node)
        self._firsts[before] = set(found)
        if may_be_empty:
            self._join(before, after)
        return before

    def _spread(self) -> None:
        pending = [point for point, found in enumerate(self._firsts) if found]
        while pending:
            point = pending.pop()
            for before in self._edges[point]:
                if not self._firsts[point] <= self._firsts[before]:
                    self._firsts[before] |= self._firsts[point]
                    pending.append(before)

    def _chars(self, point: int) -> Chars | None:
        return chars(*(pair for found in self._firsts[point] for pair in found.ranges))


def first_of(node: Node) -> tuple[list[Chars], bool]:
    """What a node without references can begin with, and whether it may be empty."""
    match node:
        case Chars():
            return [node], False
        case Lexeme(item):
            return first_of(item)
        case Seq(items):
            found: list[Chars] = []
            for item in items:
                more, may_be_empty = first_of(item)
                found += more
                if not may_be_empty:
                    return found, False
            return found, True
        case Alt(items):
            parts = list(map(first_of, items))
            return [char for more, _ in parts for char in more], any(empty for _, empty in parts)
        case Repeat(item, least, _):
            found, may_be_empty = first_of(item)
            return found, may_be_empty or least == 0
    raise TypeError(f"no part of a rule without references: {node!r}")
