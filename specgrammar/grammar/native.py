"""What every backend around a native library needs: the contract of bitmasks, checked once per array.

Native code reads memory by pointer and ignores strides, so a wrong array corrupts memory silently. Checking
each fill would cost more than the fill; an array is checked (and wrapped for the library) when it is first
seen, and the last one is remembered by identity.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import ConfigError, DeadEndError, MatcherError
from specgrammar.protocols.grammar import Vocabulary

Handle = TypeVar("Handle")


def check_vocabulary(vocabulary: Vocabulary) -> None:
    """Raise ConfigError for anything but a `Vocabulary`, such as a tokenizer."""
    if not isinstance(vocabulary, Vocabulary):
        raise ConfigError(
            f"a backend is made for a Vocabulary, not for a {type(vocabulary).__name__}; "
            "specgrammar_transformers.vocabulary_of(tokenizer) makes one"
        )


class BitmaskGuard(Generic[Handle]):
    """Checks and wraps bitmasks for one vocabulary.

    Thread-safe: its only state is replaced as a whole. It keeps the last array alive.

    Attributes:
        num_words: int32 words of a row.
    """

    def __init__(self, vocabulary: Vocabulary, wrap: Callable[[NDArray[np.int32]], Handle]) -> None:
        self.num_words: int = vocabulary.num_words
        self._wrap = wrap
        self._last: tuple[NDArray[np.int32] | None, Handle | None] = (None, None)

    def handle(self, bitmask: NDArray[np.int32]) -> Handle:
        """The library's view of `bitmask`; raises MatcherError if the array is not to contract."""
        last, handle = self._last
        if last is bitmask and handle is not None:
            return handle
        self._check(bitmask)
        handle = self._wrap(bitmask)
        self._last = (bitmask, handle)
        return handle

    def _check(self, bitmask: NDArray[np.int32]) -> None:
        if not isinstance(bitmask, np.ndarray):
            raise MatcherError(f"the bitmask is a {type(bitmask).__name__}; expected a numpy int32 array")
        if bitmask.dtype != np.int32 or bitmask.ndim != 2 or bitmask.shape[1] != self.num_words:
            raise MatcherError(
                f"the bitmask is {bitmask.dtype}{list(bitmask.shape)}; "
                f"expected int32[rows, {self.num_words}] for this vocabulary"
            )
        if not bitmask.flags.c_contiguous or not bitmask.flags.writeable:
            raise MatcherError("the bitmask has to be C-contiguous and writeable; pass the base array")


def check_row(bitmask: NDArray[np.int32], row: int) -> None:
    """Raise MatcherError unless `row` is a row of `bitmask`."""
    if not 0 <= row < len(bitmask):
        raise MatcherError(f"row {row} is outside the bitmask's {len(bitmask)} rows")


def check_filled(bitmask: NDArray[np.int32], row: int) -> None:
    """Raise DeadEndError if a filled row allows nothing; looks at one word in nearly all cases."""
    if not (bitmask.item(row, 0) or bitmask[row].any()):
        raise dead_end()


def dead_end() -> DeadEndError:
    """The error for a row that allows nothing."""
    return DeadEndError(
        "the grammar admits no token here, not even a stop token; "
        "check that something satisfies it and that this vocabulary can spell it"
    )


def ended(bitmask: NDArray[np.int32], row: int) -> DeadEndError:
    """Clear the row behind the end of a sequence and make the error to raise."""
    bitmask[row] = 0
    return DeadEndError("the sequence has ended: nothing is legal behind a stop token")


def check_rollback(num_tokens: int, num_accepted: int) -> None:
    """Raise MatcherError unless `num_tokens` of `num_accepted` tokens can be undone."""
    if not 0 <= num_tokens <= num_accepted:
        raise MatcherError(f"rollback({num_tokens}): {num_accepted} tokens were accepted")


_SOURCE_LOCATION = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


def one_line(error: object) -> str:
    """The cause of a native error as one line: no source locations, dumps or line breaks."""
    text = _SOURCE_LOCATION.sub("", str(error).split("<state>", 1)[0].strip())
    return " ".join(text.split())[:400] or type(error).__name__
