"""One request's grammar as vLLM holds it: a `StructuredOutputGrammar` around a `GrammarSession`."""

from __future__ import annotations

import logging
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import SpecGrammarError
from specgrammar.grammar.cursor import Cursor
from specgrammar.grammar.filling import as_request_error
from specgrammar.grammar.session import GrammarSession, refuses
from specgrammar.protocols.grammar import GrammarMatcher
from specgrammar.spec.spelling import ForcedRun
from specgrammar_vllm.chain import fill_chain
from specgrammar_vllm.forced import Force

_log = logging.getLogger(__name__)


class SessionGrammar:
    """What `SessionBackend` compiles and `Walks` moves.

    vLLM's own walks need `rollback`, `fill_bitmask` and `reset`; nobody calls them once `Walks` has taken over.

    Tokens that their rows allow are legal, so the grammar moves over them when it is looked at the next time:
    with the drafts behind them in one walk, or aside, while the forward is launched. Nor is it taken back from
    drafts before it has to be.

    Attributes:
        session: the request's, for its grammar, its end and its failure. Its history stays empty: vLLM has one,
            and the calls that keep another cost more than the grammar does.
        run: forced drafts of the step under way.
    """

    def __init__(self, session: GrammarSession) -> None:
        """Stand at the start of a session's grammar, which has no gate: reasoning is vLLM's."""
        assert session.cursor is not None
        self.session: GrammarSession = session
        self.run: ForcedRun | None = None
        self._cursor: Cursor = session.cursor
        self._matcher: GrammarMatcher = session.cursor.matcher  # moved by itself: each call is on vLLM's way
        self._stop_ids = session.stops.stop_ids
        self._num_tokens = 0
        self._num_ahead = 0  # drafts behind which the matcher stands
        self._owed: list[int] = []  # committed, and not moved over yet
        self._legal: list[int] = []  # drafts that were found legal behind what is committed

    def is_terminated(self) -> bool:
        """Whether nothing more is restricted: a stop token was committed, or the request has failed."""
        return self.session.finish is not None

    def validate_tokens(self, tokens: list[int], force: Force | None = None) -> list[int]:
        """The longest prefix that could be committed from here, a stop token included.

        Args:
            tokens: drafts without padding.
            force: makes drafts of the text that has to follow them; they are behind the prefix.
        """
        session = self.session
        self._legal = []
        self.run = None
        if session.finish is None:
            try:
                self._legal = self._walk(tokens, force)
            except Exception as error:
                session.fail(as_request_error(error))
        return self._legal

    def fill(self, drafts: list[int], bitmask: NDArray[np.int32], rows: slice) -> list[int] | None:
        """Write a request's rows in vLLM's layout; never raises.

        One row is for the state before each draft, one for that behind the last; what is left of the rows
        belongs to padding and is all ones. Behind a draft that is not legal all rows are the one before it, so
        that what was illegal there stays so. Once the grammar has ended, and where the request fails here, rows
        are all ones.

        Args:
            drafts: without padding.
            bitmask: C-contiguous, writeable int32 `[rows, num_words]`.
            rows: at least `len(drafts) + 1`.

        Returns:
            The drafts that are legal: what is drawn behind any number of them is legal if its row allows it.
            None where that cannot be said.
        """
        session, run = self.session, self.run
        if session.finish is None and (self._owed or self._legal[: len(drafts)] != drafts):  # not as validated
            self.validate_tokens(drafts)
            self.run = run
        if session.finish is not None:
            bitmask[rows] = -1
            return None
        all_legal = self._legal[: len(drafts)] == drafts
        legal = drafts if all_legal else self._legal
        ends_it = bool(legal) and legal[-1] in self._stop_ids
        try:
            if self._num_ahead:
                self._take_back()
            restricts = fill_chain(session, legal, ends_it, bitmask, rows.start)
        except Exception as error:
            session.fail(as_request_error(error))
            bitmask[rows] = -1
            return None
        last = rows.start + len(legal)
        bitmask[last + 1 : rows.stop] = -1 if all_legal else bitmask[last]
        return legal if restricts else None

    def accept_allowed(self, tokens: list[int], drafts: list[int], row: int, words: memoryview) -> bool:
        """Commit what was drawn behind drafts that `fill` returned; False, and nothing, where that is not so.

        Args:
            tokens: of one step, at least 1: some drafts, and one that the target chose.
            drafts: what `fill` returned.
            row: of the first draft.
            words: the memory in which it wrote.
        """
        if self.session.finish is not None:
            return False  # it has failed since its rows were filled
        num_drafts, token = len(tokens) - 1, tokens[-1]
        if num_drafts and tokens[:-1] != drafts[:num_drafts]:
            return False
        try:
            is_allowed = token >= 0 and words[row + num_drafts, token >> 5] >> (token & 31) & 1
        except IndexError:
            return False  # no id of the vocabulary
        if not is_allowed:
            return False
        if not self._stop_ids.isdisjoint(tokens):
            self.session.finish = "stop"
        self._owed += tokens
        self._legal = []
        return True

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Commit what the target chose; False, with the reason in the log, where the request has failed.

        What comes behind the end of the grammar is not restricted and is ignored (`ignore_eos`).
        """
        session, stop_ids = self.session, self._stop_ids
        self._legal = []
        if session.finish is None:
            ends = next((i for i, token in enumerate(tokens) if token in stop_ids), None)
            self._owed += tokens if ends is None else tokens[: ends + 1]
            try:
                self._walk([], None)
            except Exception as error:
                session.fail(as_request_error(error))
            if ends is not None and session.finish is None:
                session.finish = "stop"
        if session.error is None:
            return True
        _log.error("specgrammar: request %s fails: %s", request_id, session.error)
        return False

    def _walk(self, drafts: list[int], force: Force | None) -> list[int]:
        """Move over what is owed; then the legal beginning of drafts, and of what `force` makes behind it."""
        if self._num_ahead:
            self._take_back()
        accept_prefix = self._matcher.accept_prefix
        owed, self._owed = self._owed, []
        num_legal = accept_prefix([*owed, *drafts]) - len(owed)
        if num_legal < 0:
            raise refuses(owed[num_legal], self._num_tokens + len(owed) + num_legal)
        self._num_tokens += len(owed)
        legal = drafts[:num_legal]
        self._num_ahead = num_legal
        if force is not None and num_legal < force.num_drafts and (text := self._cursor.forced_text()):
            self.run = force.draft(legal, text)
            num_forced = accept_prefix(self.run.chain)
            self._num_ahead += num_forced
            legal += self.run.chain[:num_forced]
        return legal

    def _take_back(self) -> None:
        """Stand behind what is committed, as far as it was moved over."""
        num_ahead, self._num_ahead = self._num_ahead, 0
        self._matcher.rollback(num_ahead)

    def rollback(self, num_tokens: int) -> NoReturn:
        """Refused, see the class."""
        raise _not_taken_over(f"rollback({num_tokens})")

    def fill_bitmask(self, bitmask: object, batch_index: int) -> NoReturn:
        """Refused, see the class."""
        raise _not_taken_over(f"fill_bitmask({type(bitmask).__name__}, {batch_index})")

    def reset(self) -> NoReturn:
        """Refused, see the class."""
        raise _not_taken_over("reset()")


def _not_taken_over(call: str) -> SpecGrammarError:
    return SpecGrammarError(
        f"vLLM called {call} of a request's grammar, which only its own walks do; "
        "pass scheduler_cls='specgrammar_vllm.Scheduler', which replaces them"
    )
