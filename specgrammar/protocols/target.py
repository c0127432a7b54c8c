"""The target model: verifies a draft tree in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from specgrammar.protocols.spec import DecodeBatch
    from specgrammar.protocols.staging import Launched
    from specgrammar.trees.tree import DraftTree


@dataclass(frozen=True)
class AcceptedPaths:
    """Which path of each request's tree the target agrees with, plus one bonus token.

    Attributes:
        accept_index: int64 `[bs, longest accepted path + 1]`, node numbers local to the request from the root
            down (column 0 is the root, node 0), filled with -1.
        accept_length: int64 `[bs]`, accepted draft tokens, root and bonus token not counted.
        bonus_token: int64 `[bs]`, the target's own token behind the accepted path; -1 where the path ended
            (a stop token was accepted) or the request failed, so that nothing follows.
        logprobs: float32, as wide as `accept_index`, natural log-probability of each committed token (accepted
            drafts, then the bonus token) under the masked target distribution before temperature and
            truncation; NaN where unused. None unless asked for.
    """

    accept_index: NDArray[np.int64]
    accept_length: NDArray[np.int64]
    bonus_token: NDArray[np.int64]
    logprobs: NDArray[np.float32] | None = None

    def nodes_to_keep(self) -> NDArray[np.int64]:
        """Whose cache is kept, int64 like `accept_index`, -1 for none: of all committed tokens but the last.

        That is the root and the accepted nodes, and without a bonus token all but the last of these.
        """
        num_kept = self.accept_length + (self.bonus_token >= 0)
        depth = np.arange(self.accept_index.shape[1])
        return np.where(depth < num_kept[:, None], self.accept_index, -1)


class PendingLogits(Protocol):
    """Logits that a forward is still computing."""

    def value(self) -> torch.Tensor:
        """What `wait` returns, for work that is launched behind the forward: never blocks."""
        ...

    def wait(self) -> torch.Tensor:
        """The logits, float `[num_nodes, columns]`, row i for node i of the flat tree.

        `columns` may exceed the vocabulary (padding). The caller may overwrite them. On an accelerator this
        returns at once, and later work on the same stream is ordered behind the forward.
        """
        ...


@dataclass(frozen=True, eq=False)
class SharedTensors:
    """What a draft head shares with its target.

    Attributes:
        embedding: `[vocab_size, hidden_size]`.
        output: the output head, the same shape; the embedding itself where the two are tied.
        num_layers: decoder layers of the target.
    """

    embedding: torch.Tensor
    output: torch.Tensor
    num_layers: int


class SupportsFeatures(Protocol):
    """A target whose layers' outputs a draft head may read."""

    @property
    def shared(self) -> SharedTensors:
        """What a draft head reads of it besides; raises ModelError where there is no output head."""
        ...

    def watch(self, layers: Sequence[int]) -> None:
        """Keep features from now on, of every token that is cached.

        Args:
            layers: k is the residual stream in front of layer k, -1 what the output head reads. Their features
                are joined in this order.

        Raises ModelError where the target has no such layer, or is watched already.
        """
        ...

    def take_features(self, request_id: str) -> torch.Tensor:
        """The features of the tokens that were cached since the last call, for work that is launched.

        Returns:
            `[tokens, len(layers) * hidden_size]`, in the tokens' order: at first those of the prompt but for
            its last token, then each step's root and accepted drafts.
        """
        ...


class TargetModel(Protocol):
    """A causal language model with a cache per request (KV, or recurrent state).

    A target may also have two members, False where they are absent. `supports_resample: bool`: whether the
    logits that `wait` returns may be drawn from more than once before `commit`, which lazy masking does.
    `supports_unresolved: bool`: whether `verify` takes a batch with an unresolved step.
    """

    @property
    def max_batch_size(self) -> int | None:
        """Most requests that the cache holds at a time; None for no limit."""
        ...

    @property
    def max_length(self) -> int | None:
        """Most tokens that one request may have in the cache, prompt and output; None for no limit."""
        ...

    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        """Start a request: run the prompt but for its last token, which is the first tree's root.

        Raises ModelError when the tokens do not fit the model's context or the cache is full.
        """
        ...

    def verify(self, batch: DecodeBatch, tree: DraftTree) -> PendingLogits:
        """Launch one forward over all nodes, each seeing its request's prefix and its own ancestors.

        Node positions are `request.num_tokens - 1 + depth`, behind what an unresolved step commits. Returns
        without waiting for the result.
        """
        ...

    def commit(self, batch: DecodeBatch, paths: Launched[AcceptedPaths]) -> None:
        """Keep the cache of the nodes that `paths.nodes_to_keep()` names; drop all others of that tree.

        Called once behind each `verify`, in its order. A target without a stream asks `paths.wait()`; one with
        a stream launches work that reads `paths.value()` and returns. Where the paths raise, the step has
        failed and nothing of it is kept; the engine sees the error by itself.
        """
        ...

    def remove(self, request_id: str) -> None:
        """Free a request's cache; unknown ids are ignored."""
        ...
