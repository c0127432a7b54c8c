"""Histories for prompt lookup, one per request, kept in step with what the engine shows and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgrammar.protocols.spec import Commit, RequestView
from specgrammar.spec.corpus import History, NgramIndex

# More than a step commits, so that a commit that was missed shows; more than a chat template's last tokens.
_NUM_COMPARED = 32


@dataclass(slots=True)
class _Request:
    """What is kept of one request.

    Attributes:
        history: the tokens that were seen, in a view or in a commit.
        num_reported: length of the history as far as commits have told.
    """

    history: History
    num_reported: int


class Histories:
    """One `History` per request.

    The tokens of a view decide. Commits add to a history what no view has shown yet; they may come before or
    after the view that shows their tokens, or not at all. A history that is longer than a view, or differs
    from it in its last tokens (the request was rolled back, or its id is used anew), is built again.
    """

    def __init__(self, min_match: int, max_match: int, max_places: int) -> None:
        """No histories yet; see `corpus`."""
        self._min_match = min_match
        self._max_match = max_match
        self._max_places = max_places
        self._requests: dict[str, _Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def history(self, view: RequestView) -> History:
        """The history of a request, brought to `view.tokens`."""
        request = self._requests.get(view.request_id)
        if request is None or not self._agrees(request, view):
            index = NgramIndex(self._min_match, self._max_match, self._max_places)
            request = _Request(History(index), num_reported=len(view.tokens))
            self._requests[view.request_id] = request
        for token in view.tokens[len(request.history) :]:
            request.history.append(token)
        return request.history

    def observe(self, commits: Sequence[Commit]) -> None:
        """Learn what was committed; a finished request is forgotten."""
        for commit in commits:
            request = self._requests.get(commit.request_id)
            if request is None:
                continue
            num_known = len(request.history) - request.num_reported
            request.num_reported += len(commit.tokens)
            for token in commit.tokens[num_known:]:
                request.history.append(token)
            if commit.finished:
                del self._requests[commit.request_id]

    def _agrees(self, request: _Request, view: RequestView) -> bool:
        length = len(request.history)
        return length <= len(view.tokens) and request.history.ends_with(
            view.tokens[max(0, length - _NUM_COMPARED) : length]
        )
