"""Checks of values that a user gives, where they are given: what is refused here never fails later.

Every check raises ConfigError as `WHAT = VALUE; expected ...`, where WHAT names the owner and the field.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, SupportsIndex

from specgrammar.errors import ConfigError

INT32_MAX = 2**31 - 1
"""The bound of counts that have no tighter one: arrays of native int32 hold them."""
FLOAT_MAX = sys.float_info.max
"""The bound of numbers that have no tighter one: neither infinity nor an int that no float holds."""

_LONGEST_SHOWN = 80


def show(value: object) -> str:
    """A value for a message: short, and also where it has no `repr` (an int of 5,000 digits)."""
    try:
        text = repr(value)
    except Exception:
        return f"{type(value).__name__} that cannot be shown"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def refused(what: str, value: object, expected: str) -> ConfigError:
    """The error for a value."""
    return ConfigError(f"{what} = {show(value)}; expected {expected}")


def check_int(what: str, value: object, minimum: int, maximum: int = INT32_MAX) -> None:
    """Refuse what is not an int in [minimum, maximum]; a bool, an int to Python, is a mistake as a count."""
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        bound = "" if maximum == INT32_MAX else f" and <= {maximum}"
        raise refused(what, value, f"an integer >= {minimum}{bound}")


def check_number(
    what: str, value: object, minimum: float, maximum: float = FLOAT_MAX, *, above: bool = False
) -> None:
    """Refuse what is not a number in [minimum, maximum], or in (minimum, maximum] if `above`."""
    # Comparisons hold for an int of any size, which a conversion to float does not. NaN is in no interval.
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not (minimum < value if above else minimum <= value)
        or not value <= maximum
    ):
        bound = "" if maximum == FLOAT_MAX else f" and <= {maximum:g}"
        raise refused(what, value, f"a number {'>' if above else '>='} {minimum:g}{bound}")


def check_choice(what: str, value: object, choices: Sequence[object]) -> None:
    """Refuse what is none of `choices`, also if it is of another type."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise refused(what, value, " or ".join(repr(choice) for choice in choices))


def check_text(what: str, value: object, *, empty: bool = False) -> None:
    """Refuse what is not text that can be written as UTF-8, and an empty one unless `empty`."""
    if not isinstance(value, str) or not (value or empty):
        raise refused(what, value, "text" if empty else "text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise refused(
            what, value, f"UTF-8; character {error.start} is a lone surrogate or a byte that is not text"
        ) from None


def texts(what: str, values: object) -> tuple[str, ...]:
    """A collection of texts as a tuple; a single str is refused, it would become its characters."""
    found = tuple(_collection(what, values, "strings"))
    for i, value in enumerate(found):
        check_text(f"{what}[{i}]", value)
    return found


def token_ids(what: str, values: object, minimum: int | None = 0) -> tuple[int, ...]:
    """A collection of ints (NumPy's too) as a tuple of Python's; None as the minimum checks the type alone."""
    found: list[int] = []
    for i, value in enumerate(_collection(what, values, "token ids")):
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise refused(f"{what}[{i}]", value, "a token id, an integer")
        found.append(index(value))
        if minimum is not None and found[-1] < minimum:
            raise refused(f"{what}[{i}]", value, f"a token id >= {minimum}")
    return tuple(found)


def _collection(what: str, values: object, of: str) -> Iterable[Any]:
    if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable):
        raise refused(what, values, f"a sequence of {of}")
    return values
