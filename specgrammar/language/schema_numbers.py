"""JSON Schema numbers: bounds and multiples."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from specgrammar.language.ranges import decimals, integers
from specgrammar.language.regex import Node, literal
from specgrammar.language.rules import alt
from specgrammar.language.schema_keywords import KEYWORDS_OF_TYPE
from specgrammar.language.schema_merge import Report

MAX_MULTIPLES = 1_000
"""Most multiples of `multipleOf` between the bounds; they are written out."""


def number_node(schema: dict[str, Any], where: str, report: Report, *, integer: bool) -> Node | None:
    """The numbers that a schema allows; None if there is none."""
    bounds = {key: Decimal(str(schema[key])) for key in KEYWORDS_OF_TYPE["number"] & schema.keys()}
    low, low_open = _tighter(bounds.get("minimum"), bounds.get("exclusiveMinimum"), 1)
    high, high_open = _tighter(bounds.get("maximum"), bounds.get("exclusiveMaximum"), -1)
    step = bounds.get("multipleOf")
    if step == 1:
        integer, step = True, None
    if step is not None and integer and step == int(step):
        multiples = _multiples(int(step), low, low_open, high, high_open)
        if multiples is not None:
            return alt(*(literal(str(value)) for value in multiples))
    if step is not None:
        report(f"{where}/multipleOf")
    if not integer:
        return decimals(low, low_open, high, high_open)
    return integers(*_whole(low, low_open, high, high_open))


def _tighter(closed: Decimal | None, opened: Decimal | None, sign: int) -> tuple[Decimal | None, bool]:
    """The tighter of an inclusive and an exclusive bound, and whether it is exclusive."""
    if opened is None or (closed is not None and sign * closed > sign * opened):
        return closed, False
    return opened, True


def _whole(
    low: Decimal | None, low_open: bool, high: Decimal | None, high_open: bool
) -> tuple[int | None, int | None]:
    first = None if low is None else math.floor(low) + 1 if low_open else math.ceil(low)
    last = None if high is None else math.ceil(high) - 1 if high_open else math.floor(high)
    return first, last


def _multiples(
    step: int, low: Decimal | None, low_open: bool, high: Decimal | None, high_open: bool
) -> range | None:
    """The multiples between the bounds; None if there is a bound missing or they are too many."""
    first, last = _whole(low, low_open, high, high_open)
    if first is None or last is None or (last - first) // step > MAX_MULTIPLES:
        return None
    return range(-(-first // step) * step, last + 1, step)
