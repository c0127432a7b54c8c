"""Gates: what opens a grammar that does not begin with the output, such as the end of a reasoning block.

Before its gate is open a request is unrestricted, and what it writes is not the grammar's. The gate reads the
output token by token; from the token on that opens it the grammar restricts what follows, and the gate is not
asked again. `grammar.gate.Markers` is ours; a detector of your own goes into `Request.grammar_start` likewise.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class GrammarGate(Protocol):
    """Recognises where a grammar begins; one gate may serve many requests, from several threads.

    States are values: hashable, and never changed once they are returned. One is kept for every path of a
    draft tree, so that a gate need not undo anything. What a gate raises ends the request that it is for.
    """

    def start(self, prompt_tokens: Sequence[int], /) -> Hashable:
        """The state before the output; an open one where the grammar begins with the output."""
        ...

    def step(self, state: Any, token: int, /) -> Hashable:
        """The state behind one more token, an id of the vocabulary; `state` is not open, and stays as it is."""
        ...

    def is_open(self, state: Any, /) -> bool:
        """Whether the grammar begins behind the token that was read last."""
        ...


@runtime_checkable
class SupportsImplicitStart(Protocol):
    """An ability of a gate: what opens it belongs to the grammar, such as the first tokens of a tool call."""

    @property
    def starts(self) -> Collection[tuple[int, ...]]:
        """All that `carried` ever returns, but for `()`.

        The grammar has to begin with each of them: that is tried before the request starts.
        """
        ...

    def carried(self, state: Any, /) -> tuple[int, ...]:
        """What the grammar has read already where it begins, given an open state.

        These are the last tokens of the output, up to and with the one that opened the gate; `()` where the
        grammar begins behind that one.
        """
        ...
