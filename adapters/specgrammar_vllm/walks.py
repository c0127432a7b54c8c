"""The three walks over drafts that vLLM's scheduler asks its structured output manager for.

vLLM walks each draft in Python up to three times a step: to cut it to what is legal, to fill a row before each
token, and to move over what was accepted. Here cutting and moving are the session's calls, rows are one native
call a request, and they are filled from when the step is scheduled on, while the forward is launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import SpecGrammarError
from specgrammar_vllm.ahead import FillThreads, Jobs
from specgrammar_vllm.filling import Bounds, Filling, Request
from specgrammar_vllm.forced import ForcedDrafts
from specgrammar_vllm.grammar import SessionGrammar


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
        self._words = bitmask.data  # to read one costs a third of what it costs with NumPy
        self._threads = threads
        self._forced = forced
        self._reasons = manager.reasoner_cls is not None and not manager.enable_in_reasoning
        self._under_way: tuple[Filling, Jobs] | None = None
        # Of the last step, by request id. To ask vLLM for a grammar costs as much as to look up what was drawn.
        self._grammars: dict[str, SessionGrammar] = {}
        self._drawn_behind: dict[str, tuple[SessionGrammar, list[int], int]] = {}  # see `accept_allowed`

    def validate_tokens(self, request: Request, spec_tokens: list[int]) -> list[int]:
        """The longest prefix of drafts that is legal or not restricted yet, and behind it forced drafts."""
        if not (spec_tokens or self._forced):
            return spec_tokens
        grammar = self._grammars.get(request.request_id)
        if grammar is None:
            if not request.use_structured_output:
                return spec_tokens
            grammar = _grammar(request)
        if self._under_way is not None:
            self._drop()
        drafts = _without_padding(spec_tokens) if -1 in spec_tokens else spec_tokens
        start = self._manager._get_constraint_bounds(request, drafts).grammar_start if self._reasons else 0
        if start > len(drafts) or (start == len(drafts) and self._forced is None):
            return drafts
        force = None if self._forced is None else self._forced.behind(request, drafts[:start])
        if not start:
            return grammar.validate_tokens(drafts, force)
        return drafts[:start] + grammar.validate_tokens(drafts[start:], force)

    def begin(
        self,
        requests: Mapping[str, Request],
        structured_output_request_ids: Sequence[str],
        scheduled_spec_decode_tokens: Mapping[str, list[int]],
    ) -> None:
        """Begin, beside the scheduler, with the rows that `grammar_bitmask` will be asked for.

        Until `grammar_bitmask` is called no request of the step may be moved, and no list of drafts written to.
        """
        self._drop()
        self._grammars.clear()
        self._drawn_behind.clear()
        filling = Filling(structured_output_request_ids, requests, scheduled_spec_decode_tokens)
        if self._reasons:  # looked at here: vLLM's parsers are for one thread
            filling.bounds = [
                self._manager._get_constraint_bounds(request, _without_padding(tokens))
                for request, tokens in zip(filling.requests, filling.drafts, strict=True)
            ]
        self._under_way = filling, self._threads.start(partial(self._fill, filling), len(filling.requests))

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
        under_way = self._under_way
        if under_way is None or not under_way[0].is_of(
            structured_output_request_ids, scheduled_spec_decode_tokens
        ):
            self.begin(requests, structured_output_request_ids, scheduled_spec_decode_tokens)
            under_way = self._under_way
        assert under_way is not None
        filling, jobs = under_way
        self._under_way = None
        jobs.finish()
        return self._bitmask[: filling.rows[-1]]

    def accept_tokens(self, request: Request, new_token_ids: list[int]) -> bool:
        """Move over what the target chose; False where the request has failed.

        Then `new_token_ids` is emptied: what was drawn from a row that restricted nothing reaches nobody.
        """
        if self._under_way is not None:
            self._drop()
        drawn_behind = self._drawn_behind.pop(request.request_id, None) if new_token_ids else None
        if drawn_behind is not None:
            grammar, drafts, row = drawn_behind
            if grammar.accept_allowed(new_token_ids, drafts, row, self._words):
                if self._forced is not None:
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
        run, grammar.run = grammar.run, None
        if self._forced is not None and run is not None:
            self._forced.spelling.learn(run, tokens)

    def _drop(self) -> None:
        """Finish what is under way; a grammar is moved by one thread at a time."""
        if self._under_way is not None:
            (_, jobs), self._under_way = self._under_way, None
            jobs.finish()

    def _fill(self, step: Filling, number: int) -> None:
        """Fill the rows of one request of a step."""
        request, tokens, row, end = (
            step.requests[number],
            step.drafts[number],
            step.rows[number],
            step.rows[number + 1],
        )
        drafts, grammar_start, constraint_start = _without_padding(tokens), 0, 0
        if step.bounds is not None:
            grammar_start, constraint_start = (
                step.bounds[number].grammar_start,
                step.bounds[number].constraint_start,
            )
        if grammar_start <= len(drafts):
            grammar, rows = _grammar(request), slice(row + grammar_start, end)
            self._grammars[request.request_id] = grammar
            legal = grammar.fill(drafts[grammar_start:], self._bitmask, rows)
            if legal is not None and not (grammar_start or constraint_start):
                self._drawn_behind[request.request_id] = grammar, legal, row
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
