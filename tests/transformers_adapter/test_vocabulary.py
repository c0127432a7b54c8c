"""The bytes of the ids, put together again, are the bytes of the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specgrammar.errors import ModelError
from specgrammar.protocols.grammar import Vocabulary
from specgrammar_transformers import vocabulary_of

CORPUS = [
    '{"name": "Ada", "age": 36}',
    "the quick brown fox\n\tjumps",
    "naïve café — 東京 🎉",
    "  spaces   ",
] * 4
TEXTS = [*CORPUS[:4], "", " leading", "<|im_start|>user", "\x00\x7f", "é́", "1234567890", "<0x41>", "▁"]


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerBase:
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "</s>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    wrapped: PreTrainedTokenizerBase = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    return wrapped


def byte_level() -> PreTrainedTokenizerBase:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return wrap(tokenizer)


def sentencepiece_like() -> PreTrainedTokenizerBase:
    """Like Llama 2: a space is ▁, one is prepended, what is unknown falls apart into bytes."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "th", "t", "h", "e", "é", "京"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    model = models.BPE(vocab, [("t", "h")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrap(tokenizer)


def metaspace() -> PreTrainedTokenizerBase:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    model = models.BPE(
        {piece: i for i, piece in enumerate(pieces)}, [("▁", "a")], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")]
    )
    return wrap(tokenizer)


BUILDERS = {"byte-level": byte_level, "sentencepiece": sentencepiece_like, "metaspace": metaspace}


@pytest.fixture(scope="module", params=BUILDERS)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return BUILDERS[request.param]()


@pytest.fixture(scope="module")
def vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    return vocabulary_of(tokenizer)


@pytest.mark.parametrize("text", [text for text in TEXTS if "▁" not in text])
def test_tokens_spell_the_text(vocabulary: Vocabulary, text: str) -> None:
    assert vocabulary.encode is not None
    ids = vocabulary.encode(text)
    assert vocabulary.text(ids) == text.encode()
    assert not vocabulary.special_ids.intersection(ids)


@given(text=st.text())
def test_any_text_survives_byte_level_bpe(text: str) -> None:
    encode = BYTE_LEVEL.encode
    assert encode is not None
    assert BYTE_LEVEL.text(encode(text)) == text.encode()


BYTE_LEVEL = vocabulary_of(byte_level())


def test_special_stop_and_added_tokens(tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> None:
    ids = tokenizer.get_vocab()
    start, turn_end, eos, think = (ids[piece] for piece in ("<|im_start|>", "<|im_end|>", "</s>", "<think>"))
    assert vocabulary.stop_ids == tuple(sorted([turn_end, eos]))
    unknown = ids.get("<unk>", eos)
    assert {start, turn_end, eos, unknown} <= vocabulary.special_ids
    assert think not in vocabulary.special_ids
    assert vocabulary.tokens[think] == b"<think>"
    assert all(vocabulary.tokens[i] == b"" for i in vocabulary.special_ids)
    assert vocabulary.vocab_size == len(tokenizer)


def test_ids_without_a_token_and_ids_without_a_column() -> None:
    tokenizer = sentencepiece_like()
    stop = tokenizer.convert_tokens_to_ids("</s>")
    cut = vocabulary_of(tokenizer, 200, stop_ids=[5, 9999])
    assert cut.vocab_size == 200
    assert cut.stop_ids == (5,)
    assert isinstance(stop, int)
    assert vocabulary_of(tokenizer, 10_000).vocab_size == len(tokenizer)
    with pytest.raises(ModelError, match="end-of-sequence"):
        vocabulary_of(tokenizer, 200)


def test_a_tokenizer_that_loses_bytes_is_refused() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match=r"decoder \(WordPiece\) is neither byte-level nor SentencePiece-like"):
        vocabulary_of(wrap(tokenizer))
