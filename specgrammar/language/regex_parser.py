"""The parser of `language.regex`: recursive descent with bounded depth, then anchors are resolved."""

from __future__ import annotations

from specgrammar.errors import GrammarCompileError
from specgrammar.language.regex import (
    CLASS_ESCAPES,
    EMPTY,
    MAX_CODE_POINT,
    MAX_DEPTH,
    MAX_SIZE,
    NOT_LINE_END,
    Alt,
    Anchor,
    Chars,
    Node,
    Repeat,
    Seq,
    chars,
    size,
    without_anchors,
)

_CONTROL_ESCAPES = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}
_UNSUPPORTED_GROUPS = {
    "=": "look-ahead",
    "!": "negative look-ahead",
    "<=": "look-behind",
    "<!": "negative look-behind",
    ">": "atomic groups",
    "#": "comments",
    "(": "conditionals",
    "P=": "back-references",
}
_UNSUPPORTED_ESCAPES = {
    "b": "word boundaries",
    "B": "word boundaries",
    "A": r"\A (use ^)",
    "Z": r"\Z (use $)",
    "z": r"\z (use $)",
    "p": "Unicode properties",
    "P": "Unicode properties",
    "k": "back-references",
    "c": "control escapes",
}
_HEX_LENGTH = {"x": 2, "u": 4, "U": 8}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


def parse_regex(source: str) -> Node:
    """Parse a regex that has to match a whole text. Raises GrammarCompileError, with the position."""
    return without_anchors(_parse(source), source, search=False)


def parse_pattern(source: str) -> Node:
    """Parse a JSON Schema `pattern`, which has to match somewhere in a text, for the whole text."""
    return without_anchors(_parse(source), source, search=True)


def _parse(source: str) -> Node:
    node = _Parser(source).parse()
    if size(node) > MAX_SIZE:
        raise GrammarCompileError(
            f"regex: {size(node)} character positions once repetitions are written out; "
            f"at most {MAX_SIZE}, so lower the bounds of nested repetitions"
        )
    return node


class _Parser:
    """Parses one regex."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._pos = 0

    def parse(self) -> Node:
        """The whole source as a node that may hold anchors."""
        node = self._alternatives(0)
        if self._pos < len(self._source):
            raise self._error("this ')' closes nothing")
        return node

    def _error(self, what: str) -> GrammarCompileError:
        shown = self._source if len(self._source) <= 80 else self._source[:77] + "..."
        return GrammarCompileError(f"regex {shown!r}, position {self._pos}: {what}")

    def _peek(self, num: int = 1) -> str:
        return self._source[self._pos : self._pos + num]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._error("the pattern ends too early")
        self._pos += 1
        return char

    def _eat(self, text: str) -> bool:
        if self._source.startswith(text, self._pos):
            self._pos += len(text)
            return True
        return False

    def _alternatives(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._error(f"groups are nested more than {MAX_DEPTH} deep")
        branches = [self._sequence(depth)]
        while self._eat("|"):
            branches.append(self._sequence(depth))
        return branches[0] if len(branches) == 1 else Alt(tuple(branches))

    def _sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            items.append(self._quantified(depth))
        if len(items) == 1:
            return items[0]
        return Seq(tuple(items)) if items else EMPTY

    def _quantified(self, depth: int) -> Node:
        atom = self._atom(depth)
        bounds = self._quantifier()
        if bounds is None:
            return atom
        if isinstance(atom, Anchor):
            raise self._error("an anchor cannot be repeated")
        if self._peek() == "+":
            raise self._error("possessive quantifiers are not supported")
        self._eat("?")  # lazy: the same texts match
        if self._peek() in ("*", "+", "?"):
            raise self._error("nothing to repeat; put a group around the inner repetition")
        return Repeat(atom, *bounds)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for symbol, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._eat(symbol):
                return bounds
        if not self._eat("{"):
            return None
        least = self._number()
        most = least
        if self._eat(","):
            most = self._number()
        if not self._eat("}") or (least is None and most is None):
            raise self._error("expected {m}, {m,} or {m,n}; write \\{ for a brace")
        if most is not None and (least or 0) > most:
            raise self._error(f"the repetition needs at least {least} and at most {most}")
        return least or 0, most

    def _number(self) -> int | None:
        start = self._pos
        while self._peek() in tuple("0123456789"):
            self._pos += 1
        digits = self._source[start : self._pos]
        if len(digits) > 6 or int(digits or 0) > MAX_SIZE:
            raise self._error(f"a repetition may go up to {MAX_SIZE}")
        return int(digits) if digits else None

    def _atom(self, depth: int) -> Node:
        char = self._take()
        match char:
            case "(":
                self._group_head()
                node = self._alternatives(depth + 1)
                if not self._eat(")"):
                    raise self._error("a '(' is not closed")
                return node
            case "[":
                return self._char_class()
            case ".":
                return NOT_LINE_END
            case "^" | "$":
                return Anchor(start=char == "^")
            case "*" | "+" | "?":
                raise self._error(f"{char!r} has nothing to repeat; write \\{char} for the character")
            case "{" | "}" | "]":
                raise self._error(f"write \\{char} for the character {char!r}")
            case "\\":
                escaped = self._escape()
                return escaped if isinstance(escaped, Chars) else self._char(escaped)
            case _:
                return self._char(ord(char))

    def _char(self, code_point: int) -> Chars:
        found = chars((code_point, code_point))
        if found is None:
            raise self._error("surrogates are no characters; write the character itself")
        return found

    def _group_head(self) -> None:
        if not self._eat("?"):
            return
        if self._eat(":"):
            return
        for length in (2, 1):
            if name := _UNSUPPORTED_GROUPS.get(self._peek(length)):
                raise self._error(f"{name} is not supported")
        if self._eat("P<") or self._eat("<"):
            end = self._source.find(">", self._pos)
            if end > 0 and self._source[self._pos : end].isidentifier():
                self._pos = end + 1
                return
            raise self._error("the group's name is not an identifier")
        raise self._error("flags are not supported")

    def _char_class(self) -> Chars:
        negate = self._eat("^")
        ranges: list[tuple[int, int]] = []
        while not self._eat("]"):
            low = self._class_item()
            if isinstance(low, Chars):
                ranges += low.ranges
                continue
            high: Chars | int = low
            if self._peek() == "-" and self._peek(2) not in ("-", "-]"):
                self._pos += 1
                high = self._class_item()
            if isinstance(high, Chars) or high < low:
                raise self._error("the character range runs backwards or has no end")
            ranges.append((low, high))
        found = chars(*ranges, negate=negate) if ranges else None
        if found is None:
            raise self._error("the character class is empty, so it matches nothing")
        return found

    def _class_item(self) -> Chars | int:
        char = self._take()
        if char == "\\":
            return 8 if self._eat("b") else self._escape()
        if char == "[":
            raise self._error("write \\[ inside a character class; nested and POSIX classes are not supported")
        return ord(char)

    def _escape(self) -> Chars | int:
        char = self._take()
        if char in CLASS_ESCAPES:
            return CLASS_ESCAPES[char]
        if char in _CONTROL_ESCAPES and not (char == "0" and self._peek().isdigit()):
            return _CONTROL_ESCAPES[char]
        if char in _HEX_LENGTH:
            return self._hex(char)
        if char in _UNSUPPORTED_ESCAPES:
            raise self._error(f"{_UNSUPPORTED_ESCAPES[char]} are not supported")
        if char.isalnum():
            raise self._error(f"the escape \\{char} is not supported")
        return ord(char)

    def _hex(self, kind: str) -> int:
        if self._eat("{"):
            end = self._source.find("}", self._pos)
            digits = self._source[self._pos : max(end, self._pos)]
            self._pos = end + 1
        else:
            digits = self._peek(_HEX_LENGTH[kind])
            self._pos += len(digits)
            if len(digits) < _HEX_LENGTH[kind]:
                digits = ""
        if not digits or len(digits) > 8 or not _HEX_DIGITS.issuperset(digits):
            raise self._error(f"\\{kind} needs {_HEX_LENGTH[kind]} hexadecimal digits or braces around them")
        if int(digits, 16) > MAX_CODE_POINT:
            raise self._error(f"there is no character {digits}")
        return int(digits, 16)
