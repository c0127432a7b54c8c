"""A step of vLLM's whose rows are being filled: for whom, and where the rows are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from specgrammar_vllm.forced import RunningRequest

_NO_DRAFTS: list[int] = []


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


class Filling:
    """A step whose rows are being filled.

    Attributes:
        request_ids: of those that have a grammar.
        drafts: of each.
        requests: each.
        rows: the first row of each, and behind them how many there are.
        bounds: of each; None where nothing reasons.
    """

    __slots__ = ("_scheduled", "bounds", "drafts", "request_ids", "requests", "rows")

    def __init__(
        self,
        request_ids: Sequence[str],
        requests: Mapping[str, Request],
        scheduled_spec_decode_tokens: Mapping[str, list[int]],
    ) -> None:
        """Lay out the rows: for each request one before each draft, and the bonus row."""
        self.request_ids: list[str] = [*request_ids]
        self._scheduled = scheduled_spec_decode_tokens
        self.requests: list[Request] = []
        self.drafts: list[list[int]] = []
        self.rows: list[int] = [0]
        self.bounds: list[Bounds] | None = None
        row = 0
        for name in request_ids:
            tokens = scheduled_spec_decode_tokens.get(name, _NO_DRAFTS)
            row += len(tokens) + 1
            self.requests.append(requests[name])
            self.drafts.append(tokens)
            self.rows.append(row)

    def is_of(self, request_ids: list[str], scheduled_spec_decode_tokens: Mapping[str, list[int]]) -> bool:
        """Whether this is the step that it was made for, and no request was aborted since."""
        return self._scheduled is scheduled_spec_decode_tokens and self.request_ids == request_ids
