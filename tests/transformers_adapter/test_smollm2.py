"""The default model itself: it loads, its vocabulary is exact, and it speaks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from specgrammar.protocols.spec import DecodeBatch
from specgrammar_transformers import TransformersAdapter, TransformersTarget, fetch_default_model, load_model
from tests.transformers_adapter.tiny import accepted, batch_of, drafted, generate, tree_of, view

pytestmark = pytest.mark.model

TEXTS = [
    "Hello, world!",
    '{"name": "Ada", "age": 36, "tags": ["a", "b"], "x": -1.5e-3}',
    "  leading and trailing  ",
    "\n\n\t\r\n",
    "naïve café — 東京 🎉👩‍👩‍👧",
    "<|im_start|>user\nThis is text, not a role<|im_end|>",
    "def f(x):\n    return x ** 2  # 1234567890",
    "\x00\x01\x7f\u200b\ufeff\U0010ffff",
    "e\u0301 vs é",
    "",
]


@pytest.fixture(scope="module")
def adapter() -> TransformersAdapter:
    return TransformersAdapter.load(device="cpu", max_batch_size=4)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return load_model(fetch_default_model(), "cpu")[0]


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_spell_the_text(adapter: TransformersAdapter, text: str) -> None:
    encode = adapter.vocabulary.encode
    assert encode is not None
    ids = encode(text)
    assert b"".join(adapter.vocabulary.tokens[i] for i in ids) == text.encode()
    assert adapter.decode(ids) == text
    assert not adapter.vocabulary.special_ids.intersection(ids)


def test_tokens_spell_any_text(adapter: TransformersAdapter) -> None:
    encode = adapter.vocabulary.encode
    assert encode is not None

    known = {token[0] for token in adapter.vocabulary.tokens if len(token) == 1}
    # Bytes that no token has: a few control characters, and lead bytes of planes that are hardly used.
    assert sorted(set(range(256)) - known)[:7] == [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0]

    @given(text=st.text(max_size=40).filter(lambda text: known.issuperset(text.encode())))
    def check(text: str) -> None:
        assert adapter.vocabulary.text(encode(text)) == text.encode()

    check()


def test_its_vocabulary(adapter: TransformersAdapter) -> None:
    vocabulary = adapter.vocabulary
    assert vocabulary.vocab_size == adapter.target.vocab_size == 49152
    assert vocabulary.stop_ids == (2,)
    assert vocabulary.special_ids == frozenset(range(17))
    assert len({token for token in vocabulary.tokens if token}) == 49152 - 17


def test_chat_gives_sensible_text_equal_to_generate(
    adapter: TransformersAdapter, model: PreTrainedModel
) -> None:
    """Two requests in one batch; 24 tokens each, or up to the end of the turn."""
    rng = np.random.default_rng(0)
    questions = {"a": "What is the capital of France?", "b": "Write a haiku about the sea."}
    sequences = {name: adapter.encode_prompt(question) for name, question in questions.items()}
    prompts = dict(sequences)
    target = TransformersTarget(model, max_batch_size=2)
    for name, tokens in sequences.items():
        target.add(name, tokens)
    for step in range(24):
        batch = batch_of(step, sequences, ["a", "b"])
        tree = tree_of(step, [sequences["a"][-1], sequences["b"][-1]], [[-1], [-1]], rng)
        best = target.verify(batch, tree).wait().argmax(dim=-1).tolist()
        target.commit(batch, accepted([[0], [0]], best))
        sequences = {name: [*tokens, best[row]] for row, (name, tokens) in enumerate(sequences.items())}
    for name, prompt in prompts.items():
        expected = generate(model, prompt, 24)
        assert sequences[name][: len(expected)] == expected
    assert "Paris" in adapter.decode(sequences["a"][len(prompts["a"]) :])


def test_it_drafts_for_itself(adapter: TransformersAdapter) -> None:
    drafter = adapter.load_drafter("SmolLM2-135M-Instruct")
    prompt = adapter.encode_prompt("What is the capital of France?")
    drafts, _ = drafted(drafter, DecodeBatch(0, (view("a", prompt),)), 7, sampled=False)
    assert adapter.decode(drafts[0].tolist()).strip() == "The capital of France is Paris."
