"""JSON Schema strings: length, pattern and format."""

from __future__ import annotations

from typing import Any

from specgrammar.language.formats import FORMATS
from specgrammar.language.json_text import string, string_matching
from specgrammar.language.regex import Alt, Chars, Node, Repeat, Seq
from specgrammar.language.regex_parser import parse_pattern
from specgrammar.language.schema_merge import Report


def string_node(schema: dict[str, Any], where: str, report: Report) -> Node | None:
    """The strings that a schema allows; None if there is none."""
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
    most = None if most is None else int(most)
    if most is not None and least > most:
        return None
    pattern = _pattern(schema, where, report)
    if pattern is None:
        return string(least, most)
    fitted = _fit(pattern, least, most)
    if fitted is None:
        for keyword in ("minLength", "maxLength"):
            if keyword in schema:
                report(f"{where}/{keyword}")
    return string_matching(fitted or pattern)


def _pattern(schema: dict[str, Any], where: str, report: Report) -> Node | None:
    name = schema.get("format")
    if name is not None and name not in FORMATS:
        report(f"{where}/format")
        name = None
    if "pattern" not in schema:
        return parse_pattern(FORMATS[name]) if name else None
    if name:
        report(f"{where}/format")
    return parse_pattern(schema["pattern"])


def _fit(pattern: Node, least: int, most: int | None) -> Node | None:
    """The pattern with a length beside it, where that is simple; None where it is not.

    Simple are patterns that imply the length and repetitions of one character.
    """
    shortest, longest = lengths(pattern)
    if shortest >= least and (most is None or (longest is not None and longest <= most)):
        return pattern
    only = pattern.items[0] if isinstance(pattern, Seq) and len(pattern.items) == 1 else pattern
    if not isinstance(only, Repeat) or not isinstance(only.item, Chars):
        return None
    bounds = [bound for bound in (only.most, most) if bound is not None]
    low, high = max(only.least, least), min(bounds) if bounds else None
    return Repeat(only.item, low, high) if high is None or low <= high else None


def lengths(node: Node) -> tuple[int, int | None]:
    """The fewest and the most characters of what a node matches; None for no limit."""
    match node:
        case Seq(items):
            parts = [lengths(item) for item in items]
            most = [long for _, long in parts if long is not None]
            return sum(short for short, _ in parts), sum(most) if len(most) == len(parts) else None
        case Alt(items):
            parts = [lengths(item) for item in items]
            most = [long for _, long in parts if long is not None]
            return min(short for short, _ in parts), max(most) if len(most) == len(parts) else None
        case Repeat(item, least, limit):
            short, long = lengths(item)
            if long == 0 or limit == 0:
                return short * least, 0
            return short * least, None if limit is None or long is None else long * limit
        case _:
            return 1, 1
