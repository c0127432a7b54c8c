"""The histories of the requests in flight, kept in step with what the engine shows and reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from specgrammar.protocols.spec import Commit, RequestView
from specgrammar.spec.logs import TokenLog
from specgrammar.spec.places import NgramPlaces
from specgrammar.spec.shared import SharedCorpus

# More than a step commits, so that a commit that was missed shows; more than a chat template's last tokens.
_NUM_COMPARED = 32


@dataclass(slots=True)
class _Request:
    """What is kept of one request.

    Attributes:
        history: the tokens that were seen, in a view or in a commit.
        num_prompt_tokens: how many of them are not the request's own writing.
        num_reported: length of the history as far as commits have told.
        shared_place: place of the last token in the shared corpus, -1 if none went there.
    """

    history: TokenLog
    num_prompt_tokens: int
    num_reported: int
    shared_place: int = -1


class RequestHistories:
    """One history per request, and a corpus of what they write if they share one.

    The tokens of a view decide. Commits add to a history what no view has shown yet; they may come before or
    after the view that shows their tokens, or not at all. A history that is longer than a view, or differs
    from it in its last tokens (the request was rolled back, or its id is used anew), is built again.
    """

    def __init__(self, places: NgramPlaces, shared: SharedCorpus | None = None) -> None:
        """No histories yet."""
        self._places = places
        self._shared = shared
        self._requests: dict[str, _Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def update(self, views: Sequence[RequestView]) -> list[TokenLog]:
        """The histories of different requests, brought to the tokens of their views."""
        requests = [self._request(view) for view in views]
        self._extend(
            (request, view.tokens[request.history.num_tokens :])
            for request, view in zip(requests, views, strict=True)
        )
        return [request.history for request in requests]

    def of(self, views: Sequence[RequestView]) -> list[TokenLog]:
        """The histories as the last `update` with these requests left them."""
        return [self._requests[view.request_id].history for view in views]

    def observe(self, commits: Sequence[Commit]) -> None:
        """Learn what was committed; a finished request leaves only its part of the shared corpus behind."""
        new: dict[str, tuple[_Request, Sequence[int]]] = {}
        for commit in commits:
            request = self._requests.get(commit.request_id)
            if request is None:
                continue
            if commit.request_id in new:
                self._extend([new.pop(commit.request_id)])
            num_known = request.history.num_tokens - request.num_reported
            request.num_reported += len(commit.tokens)
            new[commit.request_id] = (request, commit.tokens[num_known:])
        self._extend(new.values())
        for commit in commits:
            if commit.finished and commit.request_id in self._requests:
                self._places.release(self._requests.pop(commit.request_id).history)

    def _request(self, view: RequestView) -> _Request:
        request = self._requests.get(view.request_id)
        if request is not None and self._agrees(request.history, view):
            return request
        if request is not None:
            self._places.release(request.history)
        request = _Request(self._places.new_log(), view.num_prompt_tokens, num_reported=len(view.tokens))
        self._requests[view.request_id] = request
        return request

    def _agrees(self, history: TokenLog, view: RequestView) -> bool:
        length = history.num_tokens
        if length > len(view.tokens):
            return False
        tail = self._places.tail(history, _NUM_COMPARED)
        return tail == list(view.tokens[length - len(tail) : length])

    def _extend(self, new: Iterable[tuple[_Request, Sequence[int]]]) -> None:
        """Add to histories, and to the shared corpus what is not prompt."""
        runs = [(request, tokens) for request, tokens in new if len(tokens)]
        if not runs:
            return
        logs, counts = [request.history for request, _ in runs], [len(tokens) for _, tokens in runs]
        tokens = np.fromiter(chain.from_iterable(tokens for _, tokens in runs), np.int32, sum(counts))
        if self._shared is None:
            self._places.extend(logs, counts, tokens)
            return
        num_prompt = [
            min(count, max(0, request.num_prompt_tokens - request.history.num_tokens))
            for (request, _), count in zip(runs, counts, strict=True)
        ]
        written = [count - prompt for count, prompt in zip(counts, num_prompt, strict=True)]
        kinds = np.tile((False, True), len(runs))
        is_written = np.repeat(kinds, list(chain.from_iterable(zip(num_prompt, written, strict=True))))
        places = self._places.extend(logs, counts, tokens, (self._shared.log, is_written))
        writers = [(request, count) for (request, _), count in zip(runs, written, strict=True) if count]
        if writers:
            previous = [request.shared_place for request, _ in writers]
            last = self._shared.connect(places, [count for _, count in writers], previous)
            for (request, _), place in zip(writers, last, strict=True):
                request.shared_place = place
