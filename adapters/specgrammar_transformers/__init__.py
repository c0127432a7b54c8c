"""specgrammar on Hugging Face transformers: target, drafter, vocabulary and the default model."""

from specgrammar_transformers.adapter import TransformersAdapter
from specgrammar_transformers.drafter import TransformersDrafter
from specgrammar_transformers.loading import chat_prompt, load_model
from specgrammar_transformers.model_store import DEFAULT_MODEL, fetch_default_model
from specgrammar_transformers.target import TransformersTarget
from specgrammar_transformers.vocabulary import vocabulary_of

__all__ = [
    "DEFAULT_MODEL",
    "TransformersAdapter",
    "TransformersDrafter",
    "TransformersTarget",
    "chat_prompt",
    "fetch_default_model",
    "load_model",
    "vocabulary_of",
]
