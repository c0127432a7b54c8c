"""Loading a folder: what works, and what is said when it does not."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, T5Config

from specgrammar.errors import ConfigError, ModelError
from specgrammar.protocols.drafter import CausalDrafter
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.target import TargetModel
from specgrammar_transformers import TransformersAdapter, chat_prompt, load_model
from tests.transformers_adapter.tiny import VOCAB, drafted, plain_logits, tiny_model, view

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def tiny_tokenizer(
    alphabet: str = "abcdefghijklmnopqrstuvwxyz:>", template: str | None = None
) -> PreTrainedTokenizerBase:
    """One token per character; ids 0 and 1 are special like in the tiny models."""
    pieces = ["<s>", "</s>", *alphabet, "Ġ"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    wrapped: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=template
    )
    return wrapped


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(path)
    tiny_tokenizer(template=TEMPLATE).save_pretrained(path)
    return path


def test_a_folder_is_loaded_in_the_dtype_and_on_the_device_that_were_asked_for(folder: Path) -> None:
    model, tokenizer = load_model(folder, "cpu", "bfloat16")
    assert model.dtype == torch.bfloat16
    assert model.device == torch.device("cpu")
    assert not model.training
    assert tokenizer.eos_token == "</s>"
    assert load_model(folder, "cpu")[0].dtype == torch.float32


def test_the_chat_template_is_used_where_there_is_one() -> None:
    plain, templated = tiny_tokenizer(), tiny_tokenizer(template=TEMPLATE)
    ids = plain.get_vocab()
    assert chat_prompt(plain, "hi") == [ids["h"], ids["i"]]
    expected = ["<s>", *"user:", "Ġ", *"hi", ">"]
    assert chat_prompt(templated, "hi") == [ids[piece] for piece in expected]


def test_the_adapter_puts_the_parts_together(folder: Path) -> None:
    adapter = TransformersAdapter.load(str(folder), device="cpu", max_batch_size=2)
    assert adapter.vocabulary.stop_ids == (1,)
    target: TargetModel = adapter.target
    target.remove("nobody")
    assert adapter.target.vocab_size == VOCAB
    assert adapter.vocabulary.vocab_size == len(adapter.tokenizer)
    assert adapter.device.torch_device == torch.device("cpu")
    prompt = adapter.encode_prompt("hello")
    assert adapter.decode(adapter.encode_raw("hello")) == "hello"
    assert adapter.decode([*prompt, 63, -1]) == "user: hello>"
    drafter: CausalDrafter = adapter.load_drafter(str(folder))
    assert drafter.vocab_size == adapter.vocabulary.vocab_size
    drafts, _ = drafted(drafter, DecodeBatch(0, (view("a", prompt),)), 1, sampled=False)
    assert drafts[0, 0] == plain_logits(tiny_model(), prompt)[: drafter.vocab_size].argmax()


def test_a_drafter_with_another_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer("bacdefghijklmnopqrstuvwxyz:>").save_pretrained(tmp_path)
    adapter = TransformersAdapter.load(str(folder), device="cpu", max_batch_size=1)
    with pytest.raises(
        ModelError, match="another tokenizer than the target: 2 of 31 ids differ, id 2 is b'b' there"
    ):
        adapter.load_drafter(str(tmp_path))


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="missing' is not a folder"):
        load_model(tmp_path / "missing", "cpu")
    with pytest.raises(ModelError, match=r"holds no config.json"):
        load_model(tmp_path, "cpu")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read as a model config"):
        load_model(tmp_path, "cpu")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no such model"}))
    with pytest.raises(ModelError, match="cannot be read as a model config"):
        load_model(tmp_path, "cpu")


def test_a_model_that_is_not_causal(tmp_path: Path) -> None:
    T5Config().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="'t5' model, which is not a causal language model"):
        load_model(tmp_path, "cpu")


def test_missing_or_broken_weights_and_tokenizer(tmp_path: Path) -> None:
    model = tiny_model()
    model.config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"weights in .* cannot be loaded"):
        load_model(tmp_path, "cpu")
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match=r"weights in .* cannot be loaded"):
        load_model(tmp_path, "cpu")
    weights = model.state_dict()
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(
        {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}, file, {"format": "pt"}
    )
    with pytest.raises(ModelError, match=r"2 tensors are missing, the first is lm_head.weight"):
        load_model(tmp_path, "cpu")
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"tokenizer in .* cannot be loaded"):
        load_model(tmp_path, "cpu")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer in .* cannot be loaded"):
        load_model(tmp_path, "cpu")


@pytest.mark.parametrize(
    "device,dtype,message",
    [
        ("cpu", "int8", "dtype 'int8' is unknown; expected auto, float32"),
        ("quantum", "auto", "device 'quantum' is not one that torch knows"),
        ("meta", "auto", "device 'meta': staging and masks need"),
        ("cuda:99", "auto", "device 'cuda:99' is not on this machine"),
    ],
)
def test_devices_and_dtypes_that_are_not_there(folder: Path, device: str, dtype: str, message: str) -> None:
    with pytest.raises((ModelError, ConfigError), match=message):
        load_model(folder, device, dtype)
