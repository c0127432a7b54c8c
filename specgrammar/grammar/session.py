"""`GrammarSession`: the whole grammar and stop logic of one request, without torch, device or staging.

This is the core that everything else drives. Our own step calls it through the ledger and the mask builder;
an engine that owns its loop (vLLM's scheduler) calls `validate`, `fill` and `commit` directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from operator import eq

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import ConfigError, InvalidTokenError, RequestError
from specgrammar.grammar.cursor import Cursor
from specgrammar.grammar.dense import fill_dense
from specgrammar.grammar.filling import as_request_error
from specgrammar.grammar.gate_checks import checked_gate
from specgrammar.grammar.native_batch import packed
from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.grammar.stops import FinishReason, StopRules
from specgrammar.grammar.walk import ENDED, LIVE, Ends, nothing_legal, walk_engaged, walk_free
from specgrammar.protocols.gate import GrammarGate
from specgrammar.protocols.grammar import GrammarMatcher, Vocabulary
from specgrammar.trees.paths import Paths
from specgrammar.trees.tree import HostTree


class GrammarSession:
    """One request: its grammar, its stop rules, and what it has committed.

    Attributes:
        output: committed token ids, read only. History and grammar move by exactly these.
        finish: why the request is over; None while it runs.
        error: the failure behind `finish == "error"`.
    """

    # A step reads a little of each session, which is not in the caches: with slots it touches less.
    __slots__ = (
        "__weakref__",
        "_ahead",
        "_ends",
        "_engaged",
        "_followed",
        "_native",
        "_num_advanced",
        "_number",
        "cursor",
        "error",
        "finish",
        "output",
        "stops",
        "vocabulary",
    )

    def __init__(
        self,
        vocabulary: Vocabulary,
        matcher: GrammarMatcher | None = None,
        *,
        gate: GrammarGate | None = None,
        stops: StopRules | None = None,
        prompt_tokens: Sequence[int] = (),
    ) -> None:
        """Start a request.

        Args:
            vocabulary: the target's; ids outside of it never reach the matcher.
            matcher: at the start of its grammar; None for an unconstrained request.
            gate: the grammar begins where it opens; None begins at once.
            stops: where the request ends; by default at the vocabulary's stop tokens.
            prompt_tokens: shown to the gate, to which alone they matter.

        Raises:
            ConfigError: the gate cannot open this grammar (see `gate_checks.checked_gate`).
            RequestError: the gate failed.
        """
        self.vocabulary: Vocabulary = vocabulary
        self.stops: StopRules = stops if stops is not None else StopRules(frozenset(vocabulary.stop_ids))
        self.output: list[int] = []
        self.finish: FinishReason | None = None
        self.error: RequestError | None = None
        if matcher is not None and not hasattr(matcher, "accept_prefix"):
            raise ConfigError(
                f"a session needs a matcher, not a {type(matcher).__name__}; pass backend.matcher(compiled)"
            )
        self.cursor: Cursor | None = None
        if matcher is not None:
            trusted = None if gate is None else checked_gate(gate, matcher, vocabulary, self.stops)
            self.cursor = Cursor(matcher, trusted, vocabulary, prompt_tokens)
        self._engaged = self.cursor is not None and self.cursor.engaged
        self._native: bytes | None = None
        with self._failing_alone():
            self._native = self._find_native_calls()
        self._ends = Ends.of(vocabulary)
        self._num_advanced = 0
        self._ahead: list[int] = []
        self._followed: Paths | None = None
        self._number = 0

    @property
    def engaged(self) -> bool:
        """Whether a grammar restricts what follows the output: there is one, and the output opened its gate."""
        return self._engaged

    @property
    def text(self) -> str:
        """The output as text, cut before a stop string."""
        return self.stops.text(self.output, self.vocabulary)

    # Reading: the grammar is left as it was found.

    def validate(self, drafts: Sequence[int]) -> int:
        """How many tokens of a chain of drafts could be committed from here, a stop token included.

        A backend that raises ends the request with its reason; the answer is then 0.
        """
        self._tell_followed()
        if self.finish is not None:
            return 0
        ends = frozenset(self.vocabulary.stop_ids)
        num_open = next((i + 1 for i, token in enumerate(drafts) if token in ends), len(drafts))
        if self.cursor is None:
            in_range = range(self.vocabulary.vocab_size)
            return next((i for i, token in enumerate(drafts[:num_open]) if token not in in_range), num_open)
        with self._failing_alone():
            before = self.cursor.num_steps
            try:
                return self.cursor.step_all(drafts[:num_open])
            finally:
                self.cursor.undo(self.cursor.num_steps - before)
        return 0

    def forced_text(self, drafts: Sequence[int] = ()) -> bytes:
        """The longest text that has to follow a chain of drafts; `grammar.forced` spells it.

        Empty where the grammar has a choice or may end, where a draft is illegal or ends the request, where no
        grammar restricts what comes, and for a backend without `SupportsForcedTokens`. A backend that raises
        ends the request with its reason.
        """
        self._tell_followed()
        if self.finish is not None or self.cursor is None:
            return b""
        with self._failing_alone():
            before = self.cursor.num_steps
            try:
                if self.cursor.step_all(drafts) == len(drafts):
                    return self.cursor.forced_text()
            finally:
                self.cursor.undo(self.cursor.num_steps - before)
        return b""

    def fill(self, tree: HostTree, bitmask: NDArray[np.int32]) -> NDArray[np.int8]:
        """Fill the rows of this request's draft tree; `fill_dense` does it for a batch, and says more.

        A request that is over, or that fails here, leaves its nodes dead: nothing of them can be accepted.
        A failure ends the request with its reason and does not raise.

        Args:
            tree: one request's tree, its root being the last committed token, e.g.
                `HostTree.from_chains([[root, *drafts]])`.
            bitmask: C-contiguous, writeable int32 `[>= num_nodes, num_words]`; row i is for node i, and is all
                ones where the node is not live.

        Returns:
            The `NodeStatus` of every node, int8 `[num_nodes]`.
        """
        return fill_dense([self], tree, bitmask)

    def walk(self, nodes: RequestNodes, rows: MaskRows) -> None:
        """Walk this request's part of a batch's tree (see `filling`); raises what its grammar raises.

        A request that is over is not walked: its nodes are dead.
        """
        self._tell_followed()
        if self.finish is not None:
            rows.drop(nodes)
            return
        cursor, ends = self.cursor, self._ends
        if cursor is None:
            walk_free(None, nodes, rows, ends)
        elif not cursor.engaged:
            walk_free(cursor, nodes, rows, ends)
        else:
            walk_engaged(cursor.walk_calls(rows.bitmask), nodes, 0, rows, ends)

    def native_calls(self) -> bytes | None:
        """How native code walks this request's tree instead of `walk`: `packed` calls; None where it cannot."""
        if self._followed is not None:
            self._tell_followed()
        return self._native if self.finish is None else None

    def matcher_moved(self) -> None:
        """An engine that owns its loop has moved the matcher itself: calls are there no longer, or again."""
        self._tell_followed()
        with self._failing_alone():
            self._native = self._find_native_calls()

    # Following the target (lazy masking): the grammar moves with each choice, before that is committed.

    def follow(self, tokens: Sequence[int]) -> int:
        """Move the grammar over tokens that the target chose, up to the first illegal one; returns how many.

        `advance` finds the moves made, does not make them again, and takes back what was not kept. A backend
        that raises ends the request with its reason; the answer is then 0.
        """
        self._tell_followed()
        if self.finish is not None:
            return 0
        if self.cursor is None:
            in_range = range(self.vocabulary.vocab_size)
            return next((i for i, token in enumerate(tokens) if token not in in_range), len(tokens))
        try:
            num_moves = self.cursor.step_all(tokens)
        except Exception as error:  # as `_failing_alone`, which costs more than a move
            self.fail(as_request_error(error))
            return 0
        self._ahead += tokens[:num_moves]
        return num_moves

    def followed(self, paths: Paths, number: int) -> None:
        """Native code has moved the grammar along a path, as `follow` does; `number`: the request's.

        The matcher is told when this session is next asked something: to tell a batch's at once takes 0.1 ms of
        each step. One that raises then ends the request, after its tokens were kept if these came first.
        """
        if self._followed is not None:
            self._tell_followed()
        self._followed, self._number = paths, number

    def follow_first(self, tokens: Sequence[int]) -> int:
        """Move the grammar over the first legal one of some tokens; returns its index, -1 where none is.

        Everything else is as in `follow`.
        """
        self._tell_followed()
        if self.finish is not None or self.cursor is None:
            return -1
        try:
            index = self.cursor.step_first(tokens)
        except Exception as error:
            self.fail(as_request_error(error))
            return -1
        if index >= 0:
            self._ahead.append(tokens[index])
        return index

    def fill_ahead(self, rows: MaskRows, node: int) -> None:
        """Fill a row for a node (flat index) that the grammar stands behind, and give the node its status.

        Nothing is filled where no grammar restricts what comes next. Failures end the request, as in `fill`.
        """
        self._tell_followed()
        if self.finish is not None or self.cursor is None or not self.cursor.engaged:
            return
        with self._failing_alone():
            row = rows.take(node)
            self.cursor.walk_calls(rows.bitmask).fill(row)
            if not rows.is_empty(row):
                rows.statuses[node] = LIVE
            elif not self._ahead:
                raise nothing_legal()
            else:
                rows.statuses[node] = ENDED
                rows.disown(row)

    # Moving.

    def keep(self, tokens: Sequence[int]) -> int:
        """Append tokens to the history up to the first that ends the request; returns how many were kept.

        The end is decided by the stop rules alone, so that the history is known before the grammar has
        moved; `advance` moves the grammar by the same tokens. Nothing behind the end is kept. An id outside
        the vocabulary fails the request.
        """
        num_before = len(self.output)
        with self._failing_alone():
            for token in tokens:
                if self.finish is not None:
                    break
                if not 0 <= token < self.vocabulary.vocab_size:
                    raise _out_of_range(token, self.vocabulary, len(self.output))
                self.output.append(token)
                self.finish = self.stops.finish_reason(self.output, self.vocabulary)
        return len(self.output) - num_before

    def advance(self) -> None:
        """Move the grammar over what was kept since the last call; a second call finds nothing to do.

        The tokens were masked, so one that the grammar refuses went past its mask: the request fails, it
        does not go on unconstrained.
        """
        self._tell_followed()
        tokens = self.output[self._num_advanced :]
        self._num_advanced = len(self.output)
        ahead, self._ahead = self._ahead, []
        if self.cursor is None or not (tokens or ahead) or self.error is not None:
            return
        with self._failing_alone():
            num_there = sum(takewhile(bool, map(eq, tokens, ahead)))
            self.cursor.undo(len(ahead) - num_there)
            num_there += self.cursor.step_all(tokens[num_there:])
            self.cursor.settle()
            if num_there < len(tokens):
                raise refuses(tokens[num_there], self._num_advanced - len(tokens) + num_there)
            # Found here, where the grammar is at hand: before a walk, asking 128 of them takes 0.1 ms.
            self._native = self._find_native_calls()
        self._engaged = self.cursor.engaged

    def commit(self, tokens: Sequence[int]) -> int:
        """`keep` and `advance`: history and grammar move together; returns how many tokens were kept.

        Nothing is raised for a token that is not legal: the request ends, see `finish` and `error`.
        """
        num_kept = self.keep(tokens)
        self.advance()
        return num_kept

    def fail(self, error: RequestError) -> None:
        """End the request with an error. The first error stays; an error outranks an ordinary end."""
        if self.error is None:
            self.finish, self.error = "error", error

    def abort(self) -> None:
        """End the request because nobody wants it any more."""
        if self.finish is None:
            self.finish = "abort"

    def _tell_followed(self) -> None:
        """Tell cursor and matcher which moves native code has made."""
        if self._followed is None or self.cursor is None:
            return
        tokens, self._followed = self._followed.moves(self._number), None
        if tokens:
            with self._failing_alone():
                self.cursor.moved(tokens)
                self._ahead += tokens

    def _find_native_calls(self) -> bytes | None:
        """How native code moves the grammar from where it stands now."""
        if self.cursor is None or not self.cursor.engaged or self.finish is not None:
            return None
        native = self.cursor.native_calls()
        if native is None:
            return None
        calls = packed(native)
        return self._native if calls == self._native else calls  # the same object is known sooner

    @contextmanager
    def _failing_alone(self) -> Iterator[None]:
        """Whatever is raised inside ends this request, with a reason, and nothing else."""
        try:
            yield
        except Exception as error:
            self.fail(as_request_error(error))


def _out_of_range(token: int, vocabulary: Vocabulary, position: int) -> InvalidTokenError:
    return InvalidTokenError(
        f"token id {token} at output position {position} is outside the vocabulary "
        f"[0, {vocabulary.vocab_size}); padding ids and padded logits columns must not be committed"
    )


def refuses(token: int, position: int) -> InvalidTokenError:
    """The error for a token of the target's that the grammar does not take: it went past its mask."""
    return InvalidTokenError(
        f"the grammar refuses token id {token} at output position {position}, which the target chose; "
        "its logits were not masked with this state's row"
    )
