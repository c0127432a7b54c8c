"""`TransformersTarget`: a Hugging Face causal model as the target of a speculative step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from specgrammar.errors import ModelError, StaleStepError
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Device, Launched
from specgrammar.protocols.target import AcceptedPaths, SharedTensors
from specgrammar.runtime.device import device_for
from specgrammar.trees.tree import DraftTree
from specgrammar_transformers.architecture import output_head
from specgrammar_transformers.cached_model import CachedModel
from specgrammar_transformers.tree_layout import TreeLayout, layout_of_tree


@dataclass(frozen=True, eq=False)
class LaunchedLogits:
    """The logits of a forward that was launched."""

    forward: Launched[torch.Tensor]
    torch_device: torch.device

    def value(self) -> torch.Tensor:
        """The logits, for work that is launched behind the forward."""
        return self.forward.value()

    def wait(self) -> torch.Tensor:
        """The logits, `[num_nodes, columns]`; raises what the forward raised.

        The CPU's are read by the host, which is in no stream's order, so they are waited for. An
        accelerator's are returned at once: later work on the same stream is ordered behind them.
        """
        return self.forward.wait() if self.torch_device.type == "cpu" else self.forward.value()


class TransformersTarget:
    """Verifies draft trees in one forward pass each (`protocols.target.TargetModel`)."""

    supports_resample = True
    supports_unresolved = True

    def __init__(self, model: PreTrainedModel, max_batch_size: int, device: Device | None = None) -> None:
        """Take over a model.

        Args:
            model: a causal model; it is put into evaluation mode.
            max_batch_size: most requests at a time.
            device: where the model is and forwards are launched; None for the model's, inline on a CPU.

        Raises:
            ModelError: the model cannot verify trees (see `architecture`).
        """
        self._cached = CachedModel(model, max_batch_size, device or device_for(str(model.device)))
        self._max_batch_size = max_batch_size
        self._launched_step: int | None = None
        self._largest_tree = 0  # of that step

    @property
    def torch_device(self) -> torch.device:
        """Where the model runs and its logits are."""
        return self._cached.device

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self._cached.vocab_size

    @property
    def max_batch_size(self) -> int:
        """Most requests at a time."""
        return self._max_batch_size

    @property
    def max_length(self) -> int:
        """Most tokens of one request, prompt and output together."""
        return self._cached.max_length

    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        """Start a request: run the prompt but for its last token, which is the first tree's root.

        Waits for the prompt, so that a failure is this request's and not that of the batch it joins.

        Raises:
            ModelError: the prompt is empty or longer than the context, or the cache is full.
            InvalidTokenError: an id is outside the model's vocabulary.
        """
        if not tokens:
            raise ModelError(f"request {request_id!r} has an empty prompt; a prompt has at least one token")
        self._cached.check_fits(request_id, len(tokens))
        self._cached.start(request_id)
        try:
            self._cached.extend(request_id, tokens[:-1]).wait()
        except Exception:
            self._cached.remove(request_id)
            raise

    def verify(self, batch: DecodeBatch, tree: DraftTree) -> LaunchedLogits:
        """Launch one forward over all nodes, each seeing its request's prefix and its own ancestors.

        On the CPU the forward raises ModelError where a request's tokens are not those that were committed.

        Raises:
            StaleStepError: the tree was made for another step.
            ModelError: a request is unknown, or a path may leave the context.
        """
        if tree.step != batch.step:
            raise StaleStepError(f"the tree was made for step {tree.step}, the batch is step {batch.step}")
        if tree.bs != len(batch):
            raise ModelError(
                f"the tree has {tree.bs} requests, the batch has {len(batch)}; draft for each of them"
            )
        unresolved = batch.unresolved
        takes_part = [False] * len(batch) if unresolved is None else unresolved.takes_part
        for request, size, is_in_flight in zip(
            batch.requests, np.diff(tree.cu_nodes).tolist(), takes_part, strict=True
        ):
            most = unresolved.max_tokens if unresolved is not None and is_in_flight else 0
            deepest = min(request.max_draft_tokens, size - 1)
            self._cached.check_fits(request.request_id, request.num_tokens + most + deepest)
            self._cached.bound(request.request_id, request.num_tokens - 1 + most)
        names = [request.request_id for request in batch.requests]

        def layout() -> TreeLayout:
            if tree.made is not None:
                tree.made.value()
            self._check_histories(batch)
            return layout_of_tree(tree, self.torch_device)

        forward = self._cached.forward(names, layout, "forward")
        self._launched_step, self._largest_tree = batch.step, int(np.diff(tree.cu_nodes).max())
        return LaunchedLogits(forward, self.torch_device)

    def commit(self, batch: DecodeBatch, paths: Launched[AcceptedPaths]) -> None:
        """Keep the cache of the nodes that the paths name; drop all others of that tree.

        Raises:
            StaleStepError: another step was verified last, or this one was committed already.
        """
        if batch.step != self._launched_step:
            raise StaleStepError(
                f"step {batch.step} is to be committed, but the last `verify` without a commit "
                f"was {'none' if self._launched_step is None else f'step {self._launched_step}'}"
            )
        self._launched_step = None
        names = [request.request_id for request in batch.requests]
        self._cached.keep(names, lambda: paths.value().nodes_to_keep(), self._largest_tree)

    def _check_histories(self, batch: DecodeBatch) -> None:
        """Whether all but each request's last token are cached; asked on the stream, where that is no wait."""
        if self.torch_device.type != "cpu":
            return
        cached = self._cached.lengths([request.request_id for request in batch.requests])
        expected = torch.tensor([request.num_tokens - 1 for request in batch.requests])
        if batch.unresolved is not None:
            expected += batch.unresolved.value().num_tokens
        for request, found, wanted in zip(batch.requests, cached.tolist(), expected.tolist(), strict=True):
            if found != wanted:
                raise ModelError(
                    f"request {request.request_id!r} has {wanted + 1} tokens, but {found} are cached (all but "
                    "the last should be); commit each step's paths before the next `verify`"
                )

    @property
    def shared(self) -> SharedTensors:
        """Its embedding and output head, for a draft head that shares them.

        Raises:
            ModelError: the model has no output head.
        """
        model = self._cached.model
        head, embedding = output_head(model), model.get_input_embeddings().weight
        if head is None:
            raise ModelError(f"{type(model).__name__} has no output head that a draft head could share")
        assert isinstance(embedding, torch.Tensor)
        assert isinstance(head.weight, torch.Tensor)
        return SharedTensors(embedding.detach(), head.weight.detach(), model.config.num_hidden_layers)

    def watch(self, layers: Sequence[int]) -> None:
        """Keep features from now on (`protocols.target.SupportsFeatures`).

        Raises:
            ModelError: the model has no such layer, or its features are read already.
        """
        num_layers = self._cached.model.config.num_hidden_layers
        if self._cached.features.layers:
            raise ModelError("the target's features are read by another draft head already")
        if not layers or not all(-1 <= layer < num_layers for layer in layers):
            raise ModelError(
                f"features of the layers {list(layers)} are asked for, but the target has the layers 0 to "
                f"{num_layers - 1}, and -1 for what the output head reads"
            )
        self._cached.features.layers = tuple(layers)

    def take_features(self, request_id: str) -> torch.Tensor:
        """The features of the tokens that were cached since the last call, for work that is launched."""
        return self._cached.features.take(request_id)

    def remove(self, request_id: str) -> None:
        """Free a request's cache; unknown ids are ignored."""
        self._cached.remove(request_id)
