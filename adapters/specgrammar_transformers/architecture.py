"""What a model keeps between forwards, and whether a path of a tree can be kept of it.

A tree is verified by giving each node its own positions and its own view of the cache. That is exact for models
whose only memory is keys and values by token and whose attention takes positions and a mask from the caller.
Others are refused, with the reason, when they are loaded.
"""

from __future__ import annotations

import inspect
import sys

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from specgrammar.errors import ModelError
from specgrammar_transformers.kv_cache import PlaneShape


@torch.no_grad()
def plane_shapes(model: PreTrainedModel) -> list[tuple[PlaneShape, PlaneShape]]:
    """Per layer, the shapes of the keys and of the values that one token leaves; found by running one.

    Raises:
        ModelError: the model keeps something else, or does not take positions, mask and cache.
    """
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise ModelError(f"{name} is an encoder-decoder; a causal (decoder-only) model is needed")
    for argument in ("attention_mask", "position_ids", "past_key_values"):
        if argument not in inspect.signature(model.forward).parameters:
            raise ModelError(
                f"{name} takes no `{argument}`, so the nodes of a tree cannot be given their own paths; "
                "use a model with attention and explicit positions"
            )
    cache = DynamicCache(config=model.config)
    for index, layer in enumerate(cache.layers):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise ModelError(
                f"layer {index} of {name} keeps a {type(layer).__name__}: recurrent and other state that is "
                "not addressed by token cannot be kept for one path of a tree; use a model with attention "
                "layers only"
            )
    one = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    model(input_ids=one, past_key_values=cache, use_cache=True)
    return [(_shape(name, layer.keys), _shape(name, layer.values)) for layer in _attention(cache)]


def output_head(model: PreTrainedModel) -> torch.nn.Module | None:
    """The module that turns hidden states into logits, where the model names one."""
    head: torch.nn.Module | None = model.get_output_embeddings()
    return head


def context_limit(model: PreTrainedModel) -> int:
    """Most tokens of one request that the model can place.

    A sliding or chunked window is a limit too: the cache keeps all tokens, so such a layer is exact as long as
    the window covers them.
    """
    config = model.config.get_text_config()
    layers = DynamicCache(config=model.config).layers
    windows = [layer.sliding_window for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)]
    positions = getattr(config, "max_position_embeddings", None)
    return min([positions or sys.maxsize, *windows])


def _attention(cache: DynamicCache) -> list[DynamicLayer]:
    return [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]


def _shape(name: str, tokens: torch.Tensor | None) -> PlaneShape:
    if tokens is None:
        raise ModelError(
            f"{name} left a layer of its cache empty; a model whose layers all use the cache is needed"
        )
    return PlaneShape(tokens.shape[1], tokens.shape[3], tokens.dtype, tokens.device)
