"""One request's grammar as vLLM holds it: a `StructuredOutputGrammar` around a `GrammarSession`."""

from __future__ import annotations

import logging
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import SpecGrammarError
from specgrammar.grammar.filling import as_request_error
from specgrammar.grammar.session import GrammarSession, refuses
from specgrammar_vllm.chain import fill_chain

_log = logging.getLogger(__name__)


class SessionGrammar:
    """What `SessionBackend` compiles and `Walks` moves.

    vLLM's own walks need `rollback`, `fill_bitmask` and `reset`; nobody calls them once `Walks` has taken over.

    Attributes:
        session: the request's, for its grammar, its end and its failure. Its history stays empty: vLLM has one,
            and the calls that keep another cost more than the grammar does.
    """

    def __init__(self, session: GrammarSession) -> None:
        """Stand at the start of a grammar."""
        self.session: GrammarSession = session
        self._num_tokens = 0
        self._legal: list[int] = []  # drafts that were found legal where the session stands

    def is_terminated(self) -> bool:
        """Whether nothing more is restricted: a stop token was committed, or the request has failed."""
        return self.session.finish is not None

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The longest prefix that could be committed from here, a stop token included."""
        session = self.session
        self._legal = []
        if session.finish is None and session.cursor is not None:
            try:
                num_legal = session.cursor.step_all(tokens)
                session.cursor.undo(num_legal)
                self._legal = tokens[:num_legal]
            except Exception as error:
                session.fail(as_request_error(error))
        return self._legal

    def fill(self, drafts: list[int], bitmask: NDArray[np.int32], rows: slice) -> None:
        """Write a request's rows in vLLM's layout; never raises.

        One row is for the state before each draft, one for that behind the last; what is left of the rows
        belongs to padding and is all ones. Behind a draft that is not legal all rows are the one before it, so
        that what was illegal there stays so. Once the grammar has ended, and where the request fails here, rows
        are all ones.

        Args:
            drafts: without padding.
            bitmask: C-contiguous, writeable int32 `[rows, num_words]`.
            rows: at least `len(drafts) + 1`.
        """
        session = self.session
        if session.finish is None and self._legal[: len(drafts)] != drafts:  # not what was validated
            self.validate_tokens(drafts)
        if session.finish is not None:
            bitmask[rows] = -1
            return
        assert session.cursor is not None
        all_legal = self._legal[: len(drafts)] == drafts
        legal = drafts if all_legal else self._legal
        ends_it = bool(legal) and legal[-1] in session.stops.stop_ids
        try:
            fill_chain(session.cursor, legal, ends_it, bitmask, rows.start)
        except Exception as error:
            session.fail(as_request_error(error))
            bitmask[rows] = -1
            return
        last = rows.start + len(legal)
        bitmask[last + 1 : rows.stop] = -1 if all_legal else bitmask[last]

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Commit what the target chose; False, with the reason in the log, where the request has failed.

        What comes behind the end of the grammar is not restricted and is ignored (`ignore_eos`).
        """
        session = self.session
        self._legal = []
        if session.finish is None and session.cursor is not None:
            try:  # as `session.commit`, but that keeps a history, which here is vLLM's
                num_legal = session.cursor.step_all(tokens)
                session.cursor.settle()
                self._num_tokens += num_legal
                if num_legal and tokens[num_legal - 1] in session.stops.stop_ids:
                    session.finish = "stop"
                elif num_legal < len(tokens):
                    raise refuses(tokens[num_legal], self._num_tokens)
            except Exception as error:
                session.fail(as_request_error(error))
        if session.error is None:
            return True
        _log.error("specgrammar: request %s fails: %s", request_id, session.error)
        return False

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
