"""What a grammar backend may offer beyond the protocol, each a narrow protocol of its own.

Nobody has to: what is absent is done with the plain methods. Abilities are found by their members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specgrammar.protocols.grammar import GrammarBackend, GrammarSpec


class WalkCalls(NamedTuple):
    """What a walk over a draft tree calls at each node; `accept` and `rollback` are balanced by the walk."""

    accept: Callable[[int], Any]
    """Move over a token whose bit is set in the row that was filled in this state; never a stop token."""
    fill: Callable[[int], Any]
    """Fill a row of the walk's bitmask; all zero, without raising, where nothing is legal."""
    rollback: Callable[[int], Any]
    """Undo the last n tokens."""


@runtime_checkable
class SupportsUncheckedWalk(Protocol):
    """An ability of a matcher: the calls of a walk without the checks that the walk has made already.

    A checked call costs as much as a small native one. Here rows are in range, the bitmask was checked once,
    tokens are legal, and nothing is undone that was not done in the same walk.
    """

    def walk_calls(self, bitmask: NDArray[np.int32]) -> WalkCalls:
        """The calls for one walk, valid until any other method is called.

        Raises MatcherError for a bitmask that is not to contract, and where the matcher is `finished`.
        """
        ...


class NativeCalls(NamedTuple):
    """How native code moves a matcher: see `specgrammar/native/matcher_calls.h`, which is in the package."""

    calls: int
    """The address of a `SpecgrammarCalls`, valid as long as the matcher."""
    matcher: int
    """The address that its functions are given, valid as long as the matcher."""
    grammar: int = 0
    """Matchers with the same number read the same compiled grammar; they are walked one behind the other, so
    that the caches hold it. What comes of a walk does not depend on it."""


@runtime_checkable
class SupportsNativeCalls(Protocol):
    """An ability of a matcher: native code moves it, without the interpreter and without its lock.

    The trees of a batch are then walked by one native call, side by side where threads pay.
    """

    def native_calls(self) -> NativeCalls | None:
        """The calls for this matcher: the same wherever it stands, so that they are not asked for in each step.

        They do what `walk_calls` do, but the token of an accept may be any id. None where native code cannot
        move it: behind a stop token, or where the library for it was not built.
        """
        ...

    def native_moved(self, tokens: Sequence[int]) -> None:
        """Count tokens that native code has accepted through the calls and did not undo: they are steps now."""
        ...


@runtime_checkable
class SupportsForcedTokens(Protocol):
    """An ability of a matcher: it knows where the grammar leaves no choice.

    It is asked for text, since forced text has several tokenisations; `grammar.forced` spells it.
    """

    def forced_text(self) -> bytes:
        """The longest text that everything has to go on with which the grammar allows here.

        Empty where there is a choice, where the grammar may end, and behind a stop token. It may end inside a
        character. The state is left as found. Raises MatcherError where the backend failed.
        """
        ...


@runtime_checkable
class SupportsTrial(Protocol):
    """An ability of a backend whose native compiler may hang: grammars are tried in another process first.

    What compiled there within the limits on time and memory is compiled here again, so a compiled grammar
    needs no form in which it could travel. Backends whose compilers end by limits of their own do without.
    """

    def may_hang(self, spec: GrammarSpec) -> bool:
        """Whether compiling could take longer than about a second here. True where that is not known.

        Raises GrammarCompileError as `compile` would, where that shows before native code is reached.
        """
        ...

    def recipe(self) -> Callable[[], GrammarBackend]:
        """What makes an equal backend in another process: it can be pickled (a `functools.partial`, say)."""
        ...


@runtime_checkable
class KnowsItsSize(Protocol):
    """An ability of a compiled grammar: it says what it holds, so that a cache can be bounded in bytes."""

    @property
    def num_bytes(self) -> int:
        """About how many bytes go free with it; known since it was compiled, no native code is asked."""
        ...
