"""The three walks over drafts that vLLM's scheduler asks its structured output manager for.

vLLM walks each draft in Python up to three times a step: to cut it to what is legal, to fill a row before each
token, and to move over what was accepted. Here cutting and moving are the session's calls, rows are one native
call a request, and they are filled from when the step is scheduled on, while the forward is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import SpecGrammarError
from specgrammar_vllm.ahead import FillThreads
from specgrammar_vllm.forced import ForcedDrafts, RunningRequest
from specgrammar_vllm.grammar import SessionGrammar

_NO_DRAFTS: list[int] = []
_WORTH_HANDING_OVER = 2
"""Rows of a step that are worth waking a thread for: that costs as much as filling one."""


class Request(RunningRequest, Protocol):
    """vLLM's `Request`, as far as it is read here."""

    @property
    def request_id(self) -> str:
        """Unique among the requests in flight."""
        ...

    @property
    def use_structured_output(self) -> bool:
        """Whether it has a grammar."""
        ...

    @property
    def structured_output_request(self) -> Any:
        """None, or vLLM's `StructuredOutputRequest`: `grammar` is read, `reasoning_ended` is set."""
        ...


class Bounds(Protocol):
    """vLLM's `ConstraintBounds`: indices into a request's tokens of one step."""

    @property
    def grammar_start(self) -> int:
        """The first token that the grammar moves over."""
        ...

    @property
    def constraint_start(self) -> int:
        """The first token that a row restricts."""
        ...


class Manager(Protocol):
    """vLLM's `StructuredOutputManager`, as far as it is asked here."""

    @property
    def reasoner_cls(self) -> object:
        """The class of the reasoning parser; None where there is none."""
        ...

    @property
    def enable_in_reasoning(self) -> bool:
        """Whether grammars hold for reasoning too."""
        ...

    def _get_constraint_bounds(
        self, request: Any, spec_tokens: Sequence[int], spec_tokens_committed: bool = False
    ) -> Bounds:
        """Where reasoning ends and the grammar begins."""
        ...


class Filling(NamedTuple):
    """A step whose rows are being filled: for what, and how to finish."""

    request_ids: list[str]
    drafts: list[list[int]]
    num_rows: int
    finish: Callable[[], None]


class Walks:
    """Stands in for the manager, as far as vLLM's scheduler calls it."""

    def __init__(
        self,
        manager: Manager,
        bitmask: NDArray[np.int32],
        threads: FillThreads,
        forced: ForcedDrafts | None = None,
    ) -> None:
        """Take over from a manager.

        Args:
            manager: knows when a request's reasoning ends.
            bitmask: C-contiguous int32 with a row for every token of the largest step.
            threads: fill beside the scheduler.
            forced: makes drafts of what has to follow a request's; None adds none.
        """
        self._manager = manager
        self._bitmask = bitmask
        self._threads = threads
        self._forced = forced
        self._reasons = manager.reasoner_cls is not None and not manager.enable_in_reasoning
        self._filling: Filling | None = None
        # The requests of the last step whose rows restrict every token that can be drawn from them.
        self._restricted: dict[str, tuple[SessionGrammar, slice]] = {}

    def validate_tokens(self, request: Request, spec_tokens: list[int]) -> list[int]:
        """The longest prefix of drafts that is legal or not restricted yet, and behind it forced drafts."""
        if not (spec_tokens or self._forced) or not request.use_structured_output:
            return spec_tokens
        self._drop()
        drafts = _without_padding(spec_tokens)
        start = self._manager._get_constraint_bounds(request, drafts).grammar_start if self._reasons else 0
        if start > len(drafts) or (start == len(drafts) and self._forced is None):
            return drafts
        force = None if self._forced is None else self._forced.behind(request)
        return drafts[:start] + _grammar(request).validate_tokens(drafts[start:], force)

    def begin(
        self,
        requests: Mapping[str, Request],
        structured_output_request_ids: Sequence[str],
        scheduled_spec_decode_tokens: Mapping[str, list[int]],
    ) -> None:
        """Begin with the rows that `grammar_bitmask` will be asked for, aside where that is worth it.

        Until `grammar_bitmask` is called no request of the step may be moved, and no list of drafts written to.
        """
        self._drop()
        self._restricted.clear()
        request_ids = list(structured_output_request_ids)
        drafts = [scheduled_spec_decode_tokens.get(name, _NO_DRAFTS) for name in request_ids]
        jobs: list[Callable[[], None]] = []
        row = 0
        for name, tokens in zip(request_ids, drafts, strict=True):
            fill = self._fill_behind_reasoning(requests[name], tokens) if self._reasons else self._fill
            jobs.append(partial(fill, requests[name], tokens, row))
            row += len(tokens) + 1
        finish = self._threads.start(jobs, aside=row >= _WORTH_HANDING_OVER)
        self._filling = Filling(request_ids, drafts, row, finish)

    def grammar_bitmask(
        self,
        requests: Mapping[str, Request],
        structured_output_request_ids: list[str],
        scheduled_spec_decode_tokens: Mapping[str, list[int]],
    ) -> NDArray[np.int32] | None:
        """The rows of a step: for each request one before each draft, padding too, and the bonus row.

        The memory is used again by the next step.
        """
        if not structured_output_request_ids:
            return None
        filling = self._filling
        drafts = [scheduled_spec_decode_tokens.get(name, _NO_DRAFTS) for name in structured_output_request_ids]
        if filling is None or filling[:2] != (structured_output_request_ids, drafts):  # a request was aborted
            self.begin(requests, structured_output_request_ids, scheduled_spec_decode_tokens)
            filling = self._filling
        assert filling is not None
        self._drop()
        return self._bitmask[: filling.num_rows]

    def accept_tokens(self, request: Request, new_token_ids: list[int]) -> bool:
        """Move over what the target chose; False where the request has failed.

        Then `new_token_ids` is emptied: what was drawn from a row that restricted nothing reaches nobody.
        """
        self._drop()
        restricted = self._restricted.pop(request.request_id, None) if new_token_ids else None
        if restricted is not None:
            grammar, rows = restricted
            if grammar.accept_allowed(new_token_ids, self._bitmask, rows):
                self._learn(grammar, new_token_ids)
                if self._reasons:
                    request.structured_output_request.reasoning_ended = True
                return True
        if not request.use_structured_output or not new_token_ids:
            return True
        start = 0
        if self._reasons:
            bounds = self._manager._get_constraint_bounds(request, new_token_ids, spec_tokens_committed=True)
            start = bounds.grammar_start
            if start > len(new_token_ids):
                return True
            request.structured_output_request.reasoning_ended = True
        grammar = _grammar(request)
        self._learn(grammar, new_token_ids[start:])
        if grammar.accept_tokens(request.request_id, new_token_ids[start:]):
            return True
        new_token_ids.clear()
        return False

    def close(self) -> None:
        """End the threads."""
        self._drop()
        self._threads.close()

    def _learn(self, grammar: SessionGrammar, tokens: list[int]) -> None:
        if self._forced is not None and grammar.run is not None:
            self._forced.spelling.learn(grammar.run, tokens)

    def _drop(self) -> None:
        """Finish what is under way; a grammar is moved by one thread at a time."""
        if self._filling is not None:
            self._filling.finish()
            self._filling = None

    def _fill(self, request: Request, tokens: list[int], row: int) -> None:
        """Fill a request's rows; none of its tokens is reasoning."""
        grammar = _grammar(request)
        rows = slice(row, row + len(tokens) + 1)
        if grammar.fill(_without_padding(tokens), self._bitmask, rows):
            self._restricted[request.request_id] = grammar, rows

    def _fill_behind_reasoning(self, request: Request, tokens: list[int]) -> Callable[..., None]:
        """What fills a request's rows. Reasoning is looked at here: vLLM's parsers are for one thread."""
        bounds = self._manager._get_constraint_bounds(request, _without_padding(tokens))
        if not bounds.grammar_start and not bounds.constraint_start:
            return self._fill
        return partial(self._fill_from, bounds.grammar_start, bounds.constraint_start)

    def _fill_from(
        self, grammar_start: int, constraint_start: int, request: Request, tokens: list[int], row: int
    ) -> None:
        drafts = _without_padding(tokens)
        end = row + len(tokens) + 1
        if grammar_start <= len(drafts):
            rows = slice(row + grammar_start, end)
            _grammar(request).fill(drafts[grammar_start:], self._bitmask, rows)
            end = row + constraint_start
        self._bitmask[row:end] = -1  # what is still reasoning


def _grammar(request: Request) -> SessionGrammar:
    structured = request.structured_output_request
    grammar = None if structured is None else structured.grammar
    if not isinstance(grammar, SessionGrammar):
        raise SpecGrammarError(
            f"the grammar of request {request.request_id} is a {type(grammar).__name__}: something has taken "
            "specgrammar's backend out of vLLM's structured output manager"
        )
    return grammar


def _without_padding(tokens: list[int]) -> list[int]:
    """The tokens before the first -1, as vLLM's `strip_speculative_padding` has it."""
    if not tokens or min(tokens) >= 0:
        return tokens
    return list(takewhile(lambda token: token >= 0, tokens))
