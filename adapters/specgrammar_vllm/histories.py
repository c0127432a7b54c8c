"""Which row of vLLM's batch is which request.

vLLM tells a proposer no request ids, and rows move when requests come and go. A row is the request whose tokens
it continues; what nobody continues has finished, or was preempted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_NUM_COMPARED = 64
"""Last tokens that must agree, beside the length. Requests that agree in all of these are drafted for alike."""


@dataclass
class RowHistory:
    """A request in the batch.

    Attributes:
        request_id: made up here; never used twice.
        tokens: prompt and output.
        num_prompt_tokens: tokens that were there when it was first seen; of a request that was preempted, all.
        drafts: that were proposed for the last step.
    """

    request_id: str
    tokens: list[int]
    num_prompt_tokens: int
    drafts: list[int] = field(default_factory=list)


@dataclass
class Histories:
    """The requests of the last step, by row."""

    rows: dict[int, RowHistory] = field(default_factory=dict)
    _num_seen: int = 0

    def update(
        self, sampled: Sequence[Sequence[int]], num_tokens: Sequence[int], token_ids: NDArray[np.int32]
    ) -> tuple[list[RowHistory], dict[int, RowHistory]]:
        """Find the request of each row that sampled something, and bring it up to date.

        Args:
            sampled: for each row the tokens that this step committed; empty for a row in its prompt.
            num_tokens: for each row, how many tokens it has with these.
            token_ids: `[rows, >= num_tokens]`.

        Returns:
            Requests of the last step that are no longer there, and those that go on, by row; a request that is
            seen for the first time has only its prompt and these tokens.
        """
        before, self.rows = self.rows, {}
        known = {}
        new = []
        for row, tokens in enumerate(sampled):
            if not tokens:
                continue
            length = int(num_tokens[row]) - len(tokens)
            tail = token_ids[row, max(0, length - _NUM_COMPARED) : length].tolist()
            history = before.get(row)
            if history is not None and _continues(history, length, tail):
                known[row] = before.pop(row)
            else:
                new.append((row, length, tail))
        for row, length, tail in new:
            moved = next((r for r, history in before.items() if _continues(history, length, tail)), None)
            if moved is not None:
                known[row] = before.pop(moved)
        for row, tokens in enumerate(sampled):
            if row in known:
                known[row].tokens += tokens
                self.rows[row] = known[row]
            elif tokens:
                self._num_seen += 1
                all_tokens = token_ids[row, : num_tokens[row]].tolist()
                self.rows[row] = RowHistory(str(self._num_seen), all_tokens, len(all_tokens) - len(tokens))
        return list(before.values()), known


def _continues(history: RowHistory, length: int, tail: list[int]) -> bool:
    return len(history.tokens) == length and history.tokens[length - len(tail) :] == tail
