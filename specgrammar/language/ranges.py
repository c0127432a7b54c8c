"""Numbers between bounds, as nodes over their decimal digits.

Digits are bounded everywhere (`MAX_INTEGER_DIGITS`, `MAX_FRACTION_DIGITS`), so that no number can run on
until the tokens are used up.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

from specgrammar.language.regex import EMPTY, Chars, Node, Repeat, literal
from specgrammar.language.rules import alt, optional, seq

MAX_INTEGER_DIGITS = 19
MAX_FRACTION_DIGITS = 20
MAX_EXPONENT_DIGITS = 3

LARGEST = 10**MAX_INTEGER_DIGITS - 1


def digit(low: int, high: int) -> Chars:
    """One decimal digit from `low` to `high`."""
    return Chars(((0x30 + low, 0x30 + high),))


DIGIT = digit(0, 9)
_MINUS = literal("-")
_TAIL = Repeat(DIGIT, 0, MAX_FRACTION_DIGITS)
_NATURAL = alt(digit(0, 0), seq(digit(1, 9), Repeat(DIGIT, 0, MAX_INTEGER_DIGITS - 1))) or EMPTY
_FRACTION = seq(literal("."), Repeat(DIGIT, 1, MAX_FRACTION_DIGITS))
_EXPONENT = seq(
    Chars(((0x45, 0x45), (0x65, 0x65))),
    optional(Chars(((0x2B, 0x2B), (0x2D, 0x2D)))),
    Repeat(DIGIT, 1, MAX_EXPONENT_DIGITS),
)
NUMBER = seq(optional(_MINUS), _NATURAL, optional(_FRACTION), optional(_EXPONENT))
"""Any JSON number of at most that many digits."""


def integers(low: int | None, high: int | None) -> Node | None:
    """The integers from `low` to `high`, inclusive, without leading zeros or `-0`; None if there is none."""
    low = -LARGEST if low is None else max(low, -LARGEST)
    high = LARGEST if high is None else min(high, LARGEST)
    negative = _naturals(max(1, -high), -low)
    return alt(seq(_MINUS, negative) if negative else None, _naturals(max(0, low), high))


def _naturals(low: int, high: int) -> Node | None:
    """`low` to `high`, both at least 0."""
    parts: list[Node | None] = []
    for num_digits in range(len(str(max(low, 0))), len(str(max(high, 0))) + 1):
        first = max(low, 10 ** (num_digits - 1) if num_digits > 1 else 0)
        last = min(high, 10**num_digits - 1)
        if first <= last:
            parts.append(_same_length(str(first), str(last)))
    return alt(*parts)


def _same_length(low: str, high: str) -> Node | None:
    """The digit strings between two of one length."""
    if not low:
        return EMPTY
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    if first == last:
        return seq(digit(first, first), _same_length(low[1:], high[1:]) or EMPTY)
    parts: list[Node | None] = []
    if low[1:] != "0" * rest:
        parts.append(seq(digit(first, first), _same_length(low[1:], "9" * rest) or EMPTY))
        first += 1
    if high[1:] != "9" * rest:
        parts.append(seq(digit(last, last), _same_length("0" * rest, high[1:]) or EMPTY))
        last -= 1
    if first <= last:
        parts.append(seq(digit(first, last), Repeat(DIGIT, rest, rest)) if rest else digit(first, last))
    return alt(*parts)


def decimals(low: Decimal | None, low_open: bool, high: Decimal | None, high_open: bool) -> Node | None:
    """The decimals between two bounds, without exponents; any JSON number if there are no bounds.

    Args:
        low: lower bound, None for none.
        low_open: whether `low` itself is left out.
        high: upper bound, None for none.
        high_open: whether `high` itself is left out.

    Returns:
        None if there is no number between them.
    """
    if low is None and high is None:
        return NUMBER
    low = Decimal(-LARGEST) if low is None else _inward(max(low, Decimal(-LARGEST)), ROUND_CEILING)
    high = Decimal(LARGEST) if high is None else _inward(min(high, Decimal(LARGEST)), ROUND_FLOOR)
    negative: Node | None = None
    if low < 0:
        end, end_open = (-high, high_open) if high < 0 else (Decimal(0), True)
        negative = _magnitudes(end, end_open, -low, low_open)
    positive = None
    if high >= 0:
        begin, begin_open = (low, low_open) if low >= 0 else (Decimal(0), False)
        positive = _magnitudes(begin, begin_open, high, high_open)
    return alt(seq(_MINUS, negative) if negative else None, positive)


def _inward(bound: Decimal, rounding: str) -> Decimal:
    with localcontext() as context:
        context.prec = MAX_INTEGER_DIGITS + MAX_FRACTION_DIGITS + 5
        return bound.quantize(Decimal(1).scaleb(-(MAX_FRACTION_DIGITS - 2)), rounding)


def _magnitudes(low: Decimal, low_open: bool, high: Decimal, high_open: bool) -> Node | None:
    """Decimals between two bounds of at least 0."""
    if low > high:
        return None
    (whole_low, part_low), (whole_high, part_high) = _split(low), _split(high)
    if whole_low == whole_high:
        return _with_fraction(
            _naturals(whole_low, whole_low), _between(part_low, low_open, part_high, high_open)
        )
    return alt(
        _with_fraction(_naturals(whole_low, whole_low), _at_least(part_low, low_open)),
        _with_fraction(_naturals(whole_low + 1, whole_high - 1), _at_least("", False)),
        _with_fraction(_naturals(whole_high, whole_high), _at_most(part_high, high_open)),
    )


def _split(value: Decimal) -> tuple[int, str]:
    whole, _, part = f"{value:f}".partition(".")
    return int(whole), part.rstrip("0")


def _with_fraction(whole: Node | None, fractions: tuple[bool, list[Node]]) -> Node | None:
    none_allowed, digits = fractions
    some = alt(*digits)
    if whole is None or (some is None and not none_allowed):
        return None
    if some is None:
        return whole
    fraction = seq(literal("."), some)
    return seq(whole, optional(fraction) if none_allowed else fraction)


# The three below answer for the digits behind the point: whether there may be none, and the nodes of the
# non-empty ones. `part` has no trailing zeros, so a non-empty one is more than 0.


def _at_least(part: str, is_open: bool) -> tuple[bool, list[Node]]:
    if not part:
        if not is_open:
            return True, [Repeat(DIGIT, 1, MAX_FRACTION_DIGITS)]
        return False, [seq(Repeat(digit(0, 0), 0, MAX_FRACTION_DIGITS), digit(1, 9), _TAIL)]
    first = int(part[0])
    more: list[Node] = [seq(digit(first + 1, 9), _TAIL)] if first < 9 else []
    return False, more + _behind(first, _at_least(part[1:], is_open))


def _at_most(part: str, is_open: bool) -> tuple[bool, list[Node]]:
    if not part:
        return (False, []) if is_open else (True, [Repeat(digit(0, 0), 1, MAX_FRACTION_DIGITS)])
    first = int(part[0])
    less: list[Node] = [seq(digit(0, first - 1), _TAIL)] if first > 0 else []
    return True, less + _behind(first, _at_most(part[1:], is_open))


def _between(low: str, low_open: bool, high: str, high_open: bool) -> tuple[bool, list[Node]]:
    if not low and not low_open:
        return _at_most(high, high_open)
    if not high:
        return False, []
    first, last = int(low[:1] or "0"), int(high[0])
    if first > last:
        return False, []
    if first == last:
        return False, _behind(first, _between(low[1:], low_open, high[1:], high_open))
    middle: list[Node] = [seq(digit(first + 1, last - 1), _TAIL)] if first + 1 < last else []
    return False, [
        *_behind(first, _at_least(low[1:], low_open)),
        *middle,
        *_behind(last, _at_most(high[1:], high_open)),
    ]


def _behind(first: int, rest: tuple[bool, list[Node]]) -> list[Node]:
    none_allowed, digits = rest
    head = digit(first, first)
    return [head] * none_allowed + [seq(head, node) for node in digits]
