"""What sglang's requests have written, as the batches that our producers draft for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specgrammar.protocols.spec import Commit, DecodeBatch, DraftGrammar, RequestView
from specgrammar.spec.sampling import SamplingParams
from specgrammar.trees.tree import HostTree


class SglangRequest(Protocol):
    """What is read of sglang's `Req`."""

    rid: str
    origin_input_ids_unpadded: Sequence[int]
    output_ids: Sequence[int]
    sampling_params: Any


@dataclass(frozen=True)
class Row:
    """One request of a batch.

    Attributes:
        request: sglang's.
        num_tokens: how many tokens it has; the last one is not in the KV cache.
        latest: what the step before committed, where `output_ids` does not have it yet.
        grammar: where it stands, for producers that read it.
    """

    request: SglangRequest
    num_tokens: int
    latest: Sequence[int] = ()
    grammar: DraftGrammar | None = None


class _History:
    """The tokens of one request, prompt and output; they only grow."""

    def __init__(self, request: SglangRequest) -> None:
        self.request = request
        self.tokens: list[int] = list(request.origin_input_ids_unpadded)
        self.num_prompt_tokens = len(self.tokens)
        self.num_drafted = -1  # no tree yet

    def update(self, row: Row) -> tuple[int, ...]:
        """Take what is new, and return it."""
        before = len(self.tokens)
        output = self.request.output_ids
        self.tokens += output[before - self.num_prompt_tokens :]
        if missing := row.num_tokens - len(self.tokens):
            self.tokens += row.latest[-missing:]
        assert len(self.tokens) == row.num_tokens, f"{self.request.rid}: sglang counts other tokens than it has"
        return tuple(self.tokens[before:])


class Histories:
    """The histories of the requests that are decoded, step by step."""

    def __init__(self) -> None:
        """No requests yet."""
        self._step = 0
        self._histories: dict[str, _History] = {}

    def batch(self, rows: Sequence[Row], max_depth: int) -> tuple[DecodeBatch, list[Commit]]:
        """The batch of the next step, and what was committed since the last one.

        A request that is no longer there has finished, as far as a producer is concerned; if it comes back (it
        was preempted), or its id does, it is new.

        Args:
            rows: the requests in row order.
            max_depth: most draft tokens on a path.
        """
        known, self._histories = self._histories, {}
        commits, views = [], []
        for row in rows:
            request = row.request
            history = known.get(request.rid)
            if history is None or history.request is not request or len(history.tokens) > row.num_tokens:
                history = _History(request)
            else:
                del known[request.rid]
            new = history.update(row)
            if history.num_drafted >= 0:
                commits.append(Commit(request.rid, new, history.num_drafted, len(new) - 1, finished=False))
            self._histories[request.rid] = history
            views.append(_view(history, max_depth, row.grammar))
        gone = [Commit(rid, (), 0, 0, finished=True) for rid in known]
        self._step += 1
        return DecodeBatch(self._step, tuple(views)), gone + commits

    def drafted(self, tree: HostTree) -> None:
        """Note the trees of the last batch."""
        sizes = (tree.cu_nodes[1:] - tree.cu_nodes[:-1]).tolist()
        for history, size in zip(self._histories.values(), sizes, strict=True):
            history.num_drafted = size - 1


def _view(history: _History, max_depth: int, grammar: DraftGrammar | None) -> RequestView:
    params = history.request.sampling_params
    num_left = max_depth
    if params.max_new_tokens is not None:
        num_output = len(history.tokens) - history.num_prompt_tokens
        num_left = max(0, min(max_depth, params.max_new_tokens - num_output - 1))
    return RequestView(
        history.request.rid,
        history.tokens,
        history.num_prompt_tokens,
        num_left,
        _sampling(params),
        grammar,
    )


def _sampling(params: Any) -> SamplingParams:
    """Parameters of sglang's as ours, for producers that draw; the target samples as sglang does.

    sglang says greedy as `top_k` 1 and no limit as 2**30.
    """
    if params.top_k == 1:
        return SamplingParams()
    top_k = 0 if params.top_k >= 1 << 30 else params.top_k
    return SamplingParams(params.temperature, top_k, params.top_p, params.min_p)
