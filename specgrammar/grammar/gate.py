"""`Markers`: the gate that opens at one of several token sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specgrammar.checks import check_choice, refused, token_ids
from specgrammar.errors import ConfigError

Marker = tuple[int, ...]


@dataclass(frozen=True)
class Markers:
    """Opens a grammar at the first marker that is complete in the output.

    A model that thinks between `<think>` and `</think>`, whose prompt may have ended the block already, and
    which may break off thinking to call a tool:

        Markers(after=[[END]], at=[[TOOL, CALL]], in_prompt=True, resets=[[BEGIN]])

    Any sequences of token ids are taken and kept as tuples. Where several markers end at the same token the
    longest counts.

    Attributes:
        after: the grammar begins behind these (`</think>`).
        at: the grammar begins with these (a tool call): their tokens are the grammar's, whenever they were
            written. A grammar that does not begin with each of them is refused.
        in_prompt: read the prompt for `after`, too: the grammar begins with the output if the last of `after`
            and `resets` in the prompt is one of `after`. By default only the output is read, since a prompt may
            hold the reasoning of earlier turns. No marker is split over prompt and output.
        resets: what comes before one of these in the prompt does not count: the begin of a block or of a turn.

    Raises ConfigError for markers that are empty, given twice, or never complete since another comes first.
    """

    after: tuple[Marker, ...] = ()
    at: tuple[Marker, ...] = ()
    in_prompt: bool = False
    resets: tuple[Marker, ...] = ()
    _automaton: _Automaton = field(init=False, repr=False, compare=False)
    _carried: list[Marker | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("after", "at", "resets"):
            object.__setattr__(self, name, _checked(name, getattr(self, name)))
        check_choice("Markers: in_prompt", self.in_prompt, (True, False))
        if not self.in_output:
            raise ConfigError("Markers: no marker opens the grammar; give some to `after` or `at`")
        if self.resets and not self.in_prompt:
            raise ConfigError("Markers: `resets` are looked for in the prompt alone; set in_prompt=True")
        markers = self.in_output + self.resets
        for i, marker in enumerate(markers):
            if marker in markers[:i]:
                raise ConfigError(f"Markers: {list(marker)} is given twice")
        automaton = _Automaton(self.in_output)
        for marker in self.in_output:
            if (first := automaton.first(marker)) != marker:
                raise ConfigError(
                    f"Markers: {list(marker)} is never complete, since {list(first or ())} comes before its end"
                )
        carried = [None if found is None else found if found in self.at else () for found in automaton.found]
        object.__setattr__(self, "_automaton", automaton)
        object.__setattr__(self, "_carried", [*carried, ()])  # the last state: the prompt opened the gate

    @property
    def in_output(self) -> tuple[Marker, ...]:
        """The markers that are looked for in the output."""
        return self.after + self.at

    @property
    def starts(self) -> tuple[Marker, ...]:
        """See `SupportsImplicitStart`."""
        return self.at

    def start(self, prompt_tokens: Sequence[int]) -> int:
        """See `GrammarGate`."""
        if not self.in_prompt:
            return 0
        last = _Automaton(self.after + self.resets).last(prompt_tokens)
        return len(self._carried) - 1 if last in self.after else 0

    def step(self, state: int, token: int) -> int:
        """See `GrammarGate`."""
        return self._automaton.step(state, token)

    def is_open(self, state: int) -> bool:
        """See `GrammarGate`."""
        return self._carried[state] is not None

    def carried(self, state: int) -> Marker:
        """See `SupportsImplicitStart`."""
        return self._carried[state] or ()


class _Automaton:
    """Aho-Corasick: follows all beginnings of markers at once; a step costs amortised O(1).

    A state stands for the longest beginning of a marker that the stream ends with; 0 is none.

    Attributes:
        found: for each state the longest marker that the stream ends with, None for none.
    """

    def __init__(self, markers: Sequence[Marker]) -> None:
        """Build it."""
        self.found: list[Marker | None] = [None]
        self._next: list[dict[int, int]] = [{}]
        self._fallback = [0]  # the state for the longest shorter end of the same stream
        for marker in markers:
            self.found[self._path(marker)[-1]] = marker
        states = list(self._next[0].values())
        for state in states:  # shorter beginnings first: it grows while it is gone through
            for token, longer in self._next[state].items():
                self._fallback[longer] = self.step(self._fallback[state], token)
                self.found[longer] = self.found[longer] or self.found[self._fallback[longer]]
                states.append(longer)

    def first(self, tokens: Iterable[int]) -> Marker | None:
        """The first marker that is complete in a stream."""
        state = 0
        for token in tokens:
            state = self.step(state, token)
            if (found := self.found[state]) is not None:
                return found
        return None

    def step(self, state: int, token: int) -> int:
        """The state behind a token."""
        while (behind := self._next[state].get(token)) is None:
            if not state:
                return 0
            state = self._fallback[state]
        return behind

    def last(self, tokens: Iterable[int]) -> Marker | None:
        """The last marker that is complete in a stream."""
        state, last = 0, None
        for token in tokens:
            state = self.step(state, token)
            last = self.found[state] or last
        return last

    def _path(self, marker: Marker) -> list[int]:
        """The states of a marker's beginnings, made where they are new."""
        path = [0]
        for token in marker:
            if token not in self._next[path[-1]]:
                self._next[path[-1]][token] = len(self._next)
                self._next.append({})
                self._fallback.append(0)
                self.found.append(None)
            path.append(self._next[path[-1]][token])
        return path[1:]


def _checked(name: str, markers: object) -> tuple[Marker, ...]:
    if isinstance(markers, str | bytes) or not isinstance(markers, Iterable):
        raise refused(f"Markers: {name}", markers, "a sequence of markers, each a sequence of token ids")
    checked = tuple(token_ids(f"Markers: {name}[{i}]", marker) for i, marker in enumerate(markers))
    for i, marker in enumerate(checked):
        if not marker:
            raise refused(f"Markers: {name}[{i}]", marker, "at least one token id")
    return checked
