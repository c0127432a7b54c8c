"""What a gate is held to: when its request starts, and, where it is not ours, at every call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from specgrammar.checks import show, token_ids
from specgrammar.errors import ConfigError, RequestError
from specgrammar.grammar.gate import Marker, Markers
from specgrammar.grammar.stops import StopRules
from specgrammar.protocols.gate import GrammarGate, SupportsImplicitStart
from specgrammar.protocols.grammar import GrammarMatcher, Vocabulary


class CheckedGate:
    """Somebody else's gate: whatever it does, its own request ends with the reason, and nothing else."""

    def __init__(self, gate: GrammarGate) -> None:
        """Wrap a gate; raises RequestError where what it may carry is no set of token sequences."""
        self._gate = gate
        self._name = type(gate).__name__
        self.starts: tuple[Marker, ...] = ()
        if isinstance(gate, SupportsImplicitStart):
            self.starts = tuple(self._call("starts", lambda: [token_ids("starts", s) for s in gate.starts]))

    def start(self, prompt_tokens: Sequence[int]) -> Hashable:
        """See `GrammarGate`."""
        return self._state("start", lambda: self._gate.start(prompt_tokens))

    def step(self, state: Hashable, token: int) -> Hashable:
        """See `GrammarGate`."""
        return self._state("step", lambda: self._gate.step(state, token))

    def is_open(self, state: Hashable) -> bool:
        """See `GrammarGate`."""
        answer = self._call("is_open", lambda: self._gate.is_open(state))
        if not isinstance(answer, bool):
            raise RequestError(f"the gate {self._name}.is_open returned {show(answer)}; expected True or False")
        return answer

    def carried(self, state: Hashable) -> Marker:
        """See `SupportsImplicitStart`; `()` for a gate without the ability."""
        gate = self._gate
        if not isinstance(gate, SupportsImplicitStart):
            return ()
        carried: Marker = self._call("carried", lambda: token_ids("carried", gate.carried(state)))
        if carried and carried not in self.starts:
            raise RequestError(
                f"the gate {self._name}.carried returned {show(carried)}, which is not among its starts; list "
                "there all that it may return"
            )
        return carried

    def _state(self, member: str, call: Callable[[], Hashable]) -> Hashable:
        state: Hashable = self._call(member, call)
        try:
            hash(state)
        except TypeError:
            raise RequestError(
                f"the gate {self._name}.{member} returned {show(state)}, which can change; a state is a value "
                "that is hashable, such as a tuple"
            ) from None
        return state

    def _call(self, member: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise RequestError(
                f"the gate {self._name}.{member} raised {type(error).__name__}: {error}"
            ) from error


TrustedGate = Markers | CheckedGate


def checked_gate(
    gate: GrammarGate, matcher: GrammarMatcher, vocabulary: Vocabulary, stops: StopRules
) -> TrustedGate:
    """A gate that can open the grammar of a request.

    Args:
        gate: as the request has it.
        matcher: at the start of the grammar, and left there.
        vocabulary: the target's.
        stops: where the request ends.

    Raises:
        ConfigError: one of its markers can never be read (it holds a stop id, or no id of the vocabulary), or
            the grammar does not begin with one that it carries.
        RequestError: somebody else's gate failed.
    """
    trusted = gate if isinstance(gate, Markers) else CheckedGate(gate)
    for marker in gate.in_output if isinstance(gate, Markers) else trusted.starts:
        _check_readable(marker, vocabulary, stops)
    for start in trusted.starts:
        num_accepted = matcher.accept_prefix(start)
        matcher.rollback(num_accepted)
        if num_accepted < len(start):
            token = start[num_accepted]
            text = vocabulary.tokens[token].decode(errors="replace")
            raise ConfigError(
                f"the grammar does not begin with the implicit marker {list(start)}: it refuses token id "
                f"{token} ({text!r}) at position {num_accepted} of it; give a grammar that begins with it, "
                "or begin behind it (`Markers(after=...)`)"
            )
    return trusted


def _check_readable(marker: Marker, vocabulary: Vocabulary, stops: StopRules) -> None:
    ends = stops.stop_ids | set(vocabulary.stop_ids)
    for token in marker:
        if token >= vocabulary.vocab_size or token in ends:
            what = "a stop token" if token in ends else f"outside the vocabulary [0, {vocabulary.vocab_size})"
            raise ConfigError(
                f"the grammar would never begin: token id {token} of its marker {list(marker)} is {what}"
            )
