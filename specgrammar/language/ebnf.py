r"""EBNF as llama.cpp and xgrammar write it (GBNF), parsed to the rules that every backend prints.

    root ::= "{" (pair ("," pair)*)? "}"   # a text is what `root` matches
    pair ::= key ":" [0-9]{1,4}
    key  ::= "\"" [^"\\\x00-\x1F]* "\""

Texts in double quotes, character classes, `.` (any character), groups, `|`, `* + ? {m} {m,} {m,n}`, comments
from `#` to the end of the line. A rule goes on until the next `name ::=`. An alternative may be empty; a whole
rule or group may not, for that one writes `""`. Recursion of any kind is allowed, left recursion too. Escapes
are `\n \r \t`, the code points `\xHH`, `\uHHHH` and `\UHHHHHHHH`, and a backslash before punctuation.

Look-ahead `(= ...)` and tokens by id or name `<...>` are refused by name: they are not about text.
"""

from __future__ import annotations

import re
import string

from specgrammar.errors import GrammarCompileError
from specgrammar.language.inline import inline_texts
from specgrammar.language.regex import (
    ANY_CHAR,
    EMPTY,
    MAX_CODE_POINT,
    MAX_SIZE,
    Chars,
    Node,
    Ref,
    Repeat,
    chars,
    literal,
    size,
)
from specgrammar.language.rules import Grammar, alt, make_grammar, repeat, seq
from specgrammar.language.source import MAX_NESTING, MAX_RULES

START = "root"

_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*+")
_NAME = re.compile(r"[A-Za-z0-9_-]++")
_HEAD = re.compile(r"([A-Za-z0-9_-]++)(?:[ \t\r\n]|#[^\n]*)*+::=")
_DIGITS = re.compile(r"[0-9]*+")
_PLAIN_TEXT = re.compile(r'[^"\\\r\n]++')
_UNSAFE = re.compile(r"[^a-z0-9_]")
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_ESCAPES = {"n": 10, "r": 13, "t": 9}
_HEX_LENGTH = {"x": 2, "u": 4, "U": 8}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_ELEMENT = 'a text "...", a class [...], a group (...), a rule\'s name or "."'


def parse_ebnf(source: str) -> Grammar:
    """The rules that can be reached from `root`, as `r{number}_{name}`.

    Raises:
        GrammarCompileError: broken, with line and column; too large; or nothing satisfies it.
    """
    parser = _Parser(source)
    rules = parser.parse()
    grammar = make_grammar(inline_texts(rules), parser.name(START))
    if grammar is None:
        raise GrammarCompileError("grammar: nothing satisfies it: every text for 'root' would go on for ever")
    return grammar


class _Parser:
    """Parses one source. Only groups recurse, at most MAX_NESTING deep."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._pos = 0
        self._names: dict[str, str] = {}
        self._used: dict[str, int] = {}
        """Where each name is used first."""

    def name(self, name: str) -> str:
        """What a rule is called in the result: unlike any other, and like no word of any backend."""
        return self._names.setdefault(name, f"r{len(self._names)}_{_UNSAFE.sub('_', name.lower()[:40])}")

    def parse(self) -> dict[str, Node]:
        """All rules, by their name in the result."""
        rules: dict[str, Node] = {}
        total = 0
        self._skip_gap()
        while self._pos < len(self._source):
            begin = self._pos
            head = _HEAD.match(self._source, begin)
            if head is None:
                raise self._error("a rule 'name ::='")
            name = head[1]
            if self.name(name) in rules:
                raise self._refuse(f"the rule {name!r} is defined twice; join both with '|'")
            if len(rules) == MAX_RULES:
                raise self._refuse(f"more than {MAX_RULES} rules")
            self._pos = head.end()
            self._skip_gap()
            rules[self.name(name)] = node = self._alternatives(0, "a rule")
            total += size(node)
            if total > MAX_SIZE:
                raise self._refuse(
                    f"with {name!r} the grammar has {total} positions once repetitions are written out; "
                    f"at most {MAX_SIZE}, so lower the bounds of repetitions",
                    begin,
                )
        if self.name(START) not in rules:
            raise self._refuse(f"no rule {START!r}; a grammar begins with '{START} ::= ...'")
        for name, at in self._used.items():
            if self.name(name) not in rules:
                raise self._refuse(f"the rule {name!r} is not defined anywhere", at)
        return rules

    def _refuse(self, what: str, at: int | None = None) -> GrammarCompileError:
        at = self._pos if at is None else at
        line, column = self._source.count("\n", 0, at) + 1, at - self._source.rfind("\n", 0, at)
        return GrammarCompileError(f"grammar, line {line}, column {column}: {what}")

    def _error(self, expected: str) -> GrammarCompileError:
        found = "the end" if self._pos >= len(self._source) else repr(self._source[self._pos])
        return self._refuse(f"found {found}, expected {expected}")

    def _peek(self) -> str:
        return self._source[self._pos : self._pos + 1]

    def _eat(self, text: str) -> bool:
        if self._source.startswith(text, self._pos):
            self._pos += len(text)
            return True
        return False

    def _skip_gap(self) -> None:
        gap = _GAP.match(self._source, self._pos)
        self._pos = gap.end() if gap else self._pos

    def _alternatives(self, depth: int, what: str) -> Node:
        branches = [self._sequence(depth)]
        while self._eat("|"):
            self._skip_gap()
            branches.append(self._sequence(depth))
        if branches == [None]:
            raise self._error(f'{_ELEMENT}; {what} is never empty, write ""')
        return alt(*(EMPTY if branch is None else branch for branch in branches)) or EMPTY

    def _sequence(self, depth: int) -> Node | None:
        """Elements up to `|`, `)`, the next rule or the end; None if there is none."""
        items: list[Node] = []
        while self._peek() not in ("", "|", ")") and not _HEAD.match(self._source, self._pos):
            items.append(self._counted(self._element(depth)))
            self._skip_gap()
        if self._peek() == ")" and depth == 0:
            raise self._error(f"{_ELEMENT}, '|' or the next rule: no '(' is open")
        return seq(*items) if items else None

    def _element(self, depth: int) -> Node:
        char = self._peek()
        if char == '"':
            return self._text()
        if char == "[":
            return self._char_class()
        if char == "(":
            return self._group(depth)
        if char == ".":
            self._pos += 1
            return ANY_CHAR
        if char == "<" or self._source.startswith("!<", self._pos):
            raise self._refuse("tokens by id or name (<...>) are not supported: a grammar is about text")
        name = _NAME.match(self._source, self._pos)
        if name is None:
            raise self._error(f"{_ELEMENT}, '|' or the next rule")
        self._used.setdefault(name[0], self._pos)
        self._pos = name.end()
        return Ref(self.name(name[0]))

    def _group(self, depth: int) -> Node:
        if depth == MAX_NESTING:
            raise self._refuse(f"groups are nested more than {MAX_NESTING} deep")
        if self._source.startswith(("(=", "(!"), self._pos):
            raise self._refuse("look-ahead '(= ...)' is not supported")
        self._pos += 1
        self._skip_gap()
        node = self._alternatives(depth + 1, "a group")
        if not self._eat(")"):
            raise self._error("')'")
        return node

    def _counted(self, node: Node) -> Node:
        """The element with what follows it: a repetition, or nothing."""
        self._skip_gap()
        begin = self._pos
        bounds = _COUNTS.get(self._peek())
        if bounds is not None:
            self._pos += 1
        elif self._eat("{"):
            bounds = self._bounds()
        else:
            return node
        self._skip_gap()
        if self._peek() in ("*", "+", "?", "{"):
            raise self._refuse(f"{self._peek()!r} repeats a repetition; put a group around the inner one")
        node = repeat(node, *bounds)
        if isinstance(node, Repeat) and size(node) > MAX_SIZE:
            raise self._refuse(f"{size(node)} positions once this is written out; at most {MAX_SIZE}", begin)
        return node

    def _bounds(self) -> tuple[int, int | None]:
        begin = self._pos
        self._skip_gap()
        least = self._number()
        most: int | None = least
        self._skip_gap()
        if self._eat(","):
            self._skip_gap()
            most = None if self._peek() == "}" else self._number()
            self._skip_gap()
        if not self._eat("}"):
            raise self._error("',' or '}', as in {m}, {m,} or {m,n}")
        if most is not None and least > most:
            raise self._refuse(f"at least {least} and at most {most} cannot both be", begin)
        return least, most

    def _number(self) -> int:
        found = _DIGITS.match(self._source, self._pos)
        digits = found[0] if found else ""
        if not digits:
            raise self._error("a number, as in {m}, {m,} or {m,n}")
        if len(digits) > 6 or int(digits) > MAX_SIZE:
            raise self._refuse(f"a repetition may go up to {MAX_SIZE}")
        self._pos += len(digits)
        return int(digits)

    def _text(self) -> Node:
        begin = self._pos
        self._pos += 1
        pieces: list[str] = []
        while not self._eat('"'):
            if plain := _PLAIN_TEXT.match(self._source, self._pos):
                pieces.append(plain[0])
                self._pos = plain.end()
            elif self._peek() == "\\":
                pieces.append(chr(self._escape()))
            else:
                raise self._refuse("this text is not closed on its line; write \\n for a line end", begin)
        return seq(literal("".join(pieces)))

    def _char_class(self) -> Chars:
        begin = self._pos
        self._pos += 1
        negate = self._eat("^")
        ranges: list[tuple[int, int]] = []
        while not self._eat("]"):
            at = self._pos
            low = high = self._class_char(begin)
            if self._peek() == "-" and not self._source.startswith("-]", self._pos):
                self._pos += 1
                high = self._class_char(begin)
            if high < low:
                raise self._refuse("the range of characters runs backwards", at)
            ranges.append((low, high))
        found = chars(*ranges, negate=negate) if ranges else None
        if found is None:
            raise self._refuse("this character class matches nothing", begin)
        return found

    def _class_char(self, begin: int) -> int:
        char = self._peek()
        if char == "\\":
            return self._escape()
        if char in ("", "\n", "\r"):
            raise self._refuse(
                "this character class is not closed on its line; write \\n for a line end", begin
            )
        self._pos += 1
        return ord(char)

    def _escape(self) -> int:
        begin = self._pos
        kind = self._source[begin + 1 : begin + 2]
        if length := _HEX_LENGTH.get(kind):
            digits = self._source[begin + 2 : begin + 2 + length]
            if len(digits) < length or not _HEX_DIGITS.issuperset(digits):
                raise self._refuse(f"\\{kind} needs {length} hexadecimal digits")
            if int(digits, 16) > MAX_CODE_POINT or 0xD800 <= int(digits, 16) <= 0xDFFF:
                raise self._refuse(f"there is no character {digits}")
            self._pos += 2 + length
            return int(digits, 16)
        if kind in _ESCAPES or (kind and kind in string.punctuation):
            self._pos += 2
            return _ESCAPES.get(kind, ord(kind))
        raise self._refuse(
            f"no escape \\{kind}; there are \\n \\r \\t \\xHH \\uHHHH \\UHHHHHHHH and \\ before punctuation"
        )
