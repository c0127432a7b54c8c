"""The data generator's forward is the model's."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from examples.train_eagle.target import SlotTarget
from specgrammar.errors import ModelError
from specgrammar.spec.eagle.config import LAST
from tests.transformers_adapter.tiny import random_model, tiny_model


def random_llama(**more: object) -> PreTrainedModel:
    torch.manual_seed(3)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return random_model("llama", "sdpa", **(sizes | heads | {"initializer_range": 0.3} | more))


def reference(model: PreTrainedModel, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits behind a text, and features 1, 2 and LAST of its tokens."""
    model.train(False)
    with torch.no_grad():
        out = model(input_ids=torch.tensor([tokens]), output_hidden_states=True)
    states = out.hidden_states
    return out.logits[0, -1], torch.stack([states[1][0], states[2][0], states[-1][0]], dim=1)


@pytest.mark.parametrize("tied", [True, False])
def test_slots_that_begin_and_end_at_different_times(tied: bool) -> None:
    model = random_llama(tie_word_embeddings=tied)
    target = SlotTarget(model, 3, 32, (1, 2, LAST))
    texts = {0: [5, 9, 3, 3, 60], 2: [1, 2]}
    logits, features = target.prefill(list(texts), list(texts.values()))
    found = dict(zip(texts, features, strict=True))
    for step in range(6):
        for row, slot in zip(logits, texts, strict=True):
            expected, states = reference(model, texts[slot])
            torch.testing.assert_close(row, expected, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(found[slot], states, atol=1e-4, rtol=1e-4)
        if step == 2:  # another text takes the slot of one that is over, and a third slot begins
            texts |= {0: [7, 7, 8], 1: [4]}
            new, features = target.prefill([0, 1], [texts[0], texts[1]])
            found |= {0: features[0], 1: features[1]}
            texts = {slot: texts[slot] for slot in (0, 1, 2)}
            logits = torch.stack([new[0], new[1], logits[1]])
        tokens = torch.zeros(3, dtype=torch.int64)
        for row, slot in zip(logits, texts, strict=True):
            texts[slot].append(int(row.argmax()))
            tokens[slot] = texts[slot][-1]
        all_logits, rows = target.decode(tokens)
        logits = all_logits[list(texts)]
        found = {slot: torch.cat((found[slot], rows[slot : slot + 1])) for slot in texts}


def test_other_families_are_refused() -> None:
    with pytest.raises(ModelError, match="gpt2"):
        SlotTarget(tiny_model("gpt2"), 1, 8, (0,))
