"""Loading a local model and its tokenizer, and turning a prompt into ids. The network is never touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from specgrammar.errors import ModelError
from specgrammar.runtime.device import device_for

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    path: str | Path, device: str = "auto", dtype: str = "auto", threads: int | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal model and its tokenizer from a folder.

    Args:
        path: a folder in Hugging Face's layout (config.json, weights, tokenizer).
        device: `cpu`, `cuda`, `cuda:N`, or `auto` for CUDA where there is a device.
        dtype: `float32`, `bfloat16`, `float16`, or `auto` for what the folder's config says.
        threads: CPU threads of torch, for the whole process; None leaves them.

    Raises:
        ModelError: the folder is missing or incomplete, holds no causal model, or the dtype is unknown.
        ConfigError: there is no such device.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        what = "holds no config.json" if folder.is_dir() else "is not a folder"
        raise ModelError(f"model {str(path)!r} {what}; give the folder of a Hugging Face model")
    on = device_for(device).torch_device
    if dtype != "auto" and dtype not in _DTYPES:
        raise ModelError(f"dtype {dtype!r} is unknown; expected auto, {', '.join(_DTYPES)}")
    if threads is not None:
        torch.set_num_threads(threads)
    with _explained(f"{folder / 'config.json'} cannot be read as a model config"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(
            f"{folder} holds a {config.model_type!r} model, which is not a causal language model that "
            "transformers knows; give a decoder-only model"
        )
    with _explained(f"the weights in {folder} cannot be loaded"), _without_progress_bar():
        loaded: Any = AutoModelForCausalLM.from_pretrained(  # a pair, which its annotation does not know
            folder,
            config=config,
            dtype=_DTYPES.get(dtype, "auto"),
            local_files_only=True,
            output_loading_info=True,
        )
    model: PreTrainedModel = loaded[0]
    # transformers would go on with random numbers in their place.
    absent = sorted(loaded[1]["missing_keys"])
    if absent:
        raise ModelError(
            f"the weights in {folder} are incomplete: {len(absent)} tensors are missing, the first is "
            f"{absent[0]}; copy the folder again"
        )
    with _explained(f"the tokenizer in {folder} cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    torch.nn.Module.to(model, on)  # the override in transformers hides the parameters from type checkers
    return model, tokenizer


def chat_prompt(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of a user's message up to where the answer begins; plain text where there is no chat template."""
    templated = tokenizer.chat_template is not None
    if templated:
        message = [{"role": "user", "content": text}]
        text = str(tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False))
    # A template writes the special tokens itself.
    encoded = tokenizer(text, add_special_tokens=not templated)
    return list(encoded["input_ids"])


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn whatever a file that is not to format makes the loaders raise into one message."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{what}: {reason}") from error


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Loading from a local folder takes moments; a bar on standard error would only be noise."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
