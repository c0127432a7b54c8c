"""`TransformersAdapter`: a model, its tokenizer and its vocabulary, ready for the decode loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specgrammar.errors import ModelError
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.staging import Device
from specgrammar.runtime.device import device_for
from specgrammar_transformers.drafter import TransformersDrafter
from specgrammar_transformers.loading import chat_prompt, load_model
from specgrammar_transformers.model_store import DEFAULT_MODEL, fetch_default_model
from specgrammar_transformers.target import TransformersTarget
from specgrammar_transformers.vocabulary import vocabulary_of


class TransformersAdapter:
    """Runs specgrammar on Hugging Face causal models, on a CPU or with CUDA.

    Attributes:
        target: verifies draft trees.
        tokenizer: the model's tokenizer.
        vocabulary: the same as grammars see it.
        device: where the logits are, with the copies and events of its stream.
    """

    api_version: Literal[1] = 1

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        max_batch_size: int,
        device: Device | None = None,
    ) -> None:
        """Wrap a model that is loaded already.

        Args:
            model: the model, where `device` is.
            tokenizer: its tokenizer.
            max_batch_size: most requests at a time.
            device: where forwards are launched; None for the model's own device, inline on a CPU.

        Raises:
            ModelError: the model or the tokenizer is of a kind that cannot be used.
        """
        self.tokenizer = tokenizer
        self.device = device or device_for(str(model.device))
        self.target = TransformersTarget(model, max_batch_size, self.device)
        self.vocabulary = _vocabulary(model, tokenizer, self.target.vocab_size)
        self._max_batch_size = max_batch_size
        self._dtype = str(model.dtype).removeprefix("torch.")

    @classmethod
    def load(
        cls,
        model: str | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_batch_size: int = 8,
        threads: int | None = None,
    ) -> TransformersAdapter:
        """Load a model by path, or the default one, which is fetched when it is not there yet.

        Args:
            model: a folder in Hugging Face's layout; None or `SmolLM2-135M-Instruct` for the default model.
            device: `cpu`, `cpu-stream` (forwards run beside the host), `cuda`, `cuda:N` or `auto`.
            dtype: `float32`, `bfloat16`, `float16` or `auto`.
            max_batch_size: most requests at a time.
            threads: CPU threads of torch, for the whole process; None leaves them.

        Raises:
            ModelError: says what is missing or cannot be used.
        """
        on = device_for(device)
        return cls(*load_model(_folder(model), str(on.torch_device), dtype, threads), max_batch_size, on)

    def load_drafter(self, name: str) -> TransformersDrafter:
        """Load a causal draft model by path or name, on the target's device and stream and in its dtype.

        Raises:
            ModelError: it cannot be loaded, or its tokens are not the target's.
        """
        model, tokenizer = load_model(_folder(name), str(self.target.torch_device), self._dtype)
        drafter = TransformersDrafter(model, self.vocabulary.vocab_size, self._max_batch_size, self.device)
        theirs, ours = _vocabulary(model, tokenizer, drafter.vocab_size), self.vocabulary
        shared = min(theirs.vocab_size, ours.vocab_size)
        different = [i for i in range(shared) if theirs.tokens[i] != ours.tokens[i]]
        if different:
            i = different[0]
            raise ModelError(
                f"the draft model {name!r} has another tokenizer than the target: {len(different)} of {shared} "
                f"ids differ, id {i} is {theirs.tokens[i]!r} there and {ours.tokens[i]!r} here; use a model of "
                "the same family"
            )
        return drafter

    def encode_prompt(self, text: str) -> list[int]:
        """The ids of a user's message, in the model's chat format where it has one."""
        return chat_prompt(self.tokenizer, text)

    def encode_raw(self, text: str) -> list[int]:
        """The ids of a text as it stands, with the tokenizer's own special tokens (a BOS) where it adds any."""
        ids: list[int] = self.tokenizer.encode(text)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of output tokens, without special ones; bytes that are not UTF-8 become U+FFFD."""
        known = [i for i in token_ids if 0 <= i < self.vocabulary.vocab_size]
        return self.vocabulary.text(known).decode("utf-8", errors="replace")


def _folder(model: str | None) -> str | Path:
    if model is None or (model == DEFAULT_MODEL and not Path(model).exists()):
        return fetch_default_model()
    return model


def _vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, num_columns: int) -> Vocabulary:
    ends: int | list[int] | None = model.generation_config.eos_token_id if model.generation_config else None
    stop_ids = [ends] if isinstance(ends, int) else ends or []
    return vocabulary_of(tokenizer, num_columns, stop_ids=stop_ids)
