"""Draft heads on disk: the layouts that EAGLE checkpoints are published in.

`config.json` beside `model.safetensors` or `pytorch_model.bin`. EAGLE-1 and 2 hold `fc` and `layers.0`,
EAGLE-3 holds `fc`, `midlayer` (or `layers.0`), `norm`, the rows of a reduced output head `lm_head.weight`,
and `d2t`, which is added to an index of the draft vocabulary to make it the target's id. A head of several
steps numbers its `layers`. Without an output head of its own, or an embedding, the target's is used.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from specgrammar.errors import ModelError
from specgrammar.spec.eagle.config import EagleConfig
from specgrammar.spec.eagle.head import EagleHead

WEIGHTS = ("model.safetensors", "pytorch_model.bin")

_NOT_WEIGHTS = ("d2t", "t2d", "embed_tokens.weight", "lm_head.weight")


def load_head(
    folder: str | Path,
    embedding: Tensor,
    output: Tensor,
    num_target_layers: int,
    dtype: torch.dtype | None = None,
) -> EagleHead:
    """Load a draft head from a local folder, on the device of the target's tensors.

    Args:
        folder: holds `config.json` and the weights.
        embedding: the target's, `[vocab_size, hidden_size]`; shared, not copied.
        output: the target's output head, the same shape (its embedding where the two are tied).
        num_target_layers: decoder layers of the target.
        dtype: of the head's weights; None for the embedding's.

    Raises:
        ModelError: a file or a tensor is missing, unknown, or has another shape than the config or the target
            says.
        ConfigError: the config is not one of a draft head.
    """
    config = EagleConfig.from_file(Path(folder) / "config.json", num_target_layers)
    path, tensors = _read(Path(folder))
    device = embedding.device
    special = {name: tensors.pop(name).to(device) for name in _NOT_WEIGHTS if name in tensors}
    ids = None
    if "d2t" in special:
        ids = _draft_ids(path, config, special["d2t"])
    elif config.draft_vocab_size not in (None, config.vocab_size):
        raise ModelError(
            f"{path}: d2t is missing, and the config names a draft vocabulary of "
            f"{config.draft_vocab_size} of {config.vocab_size} ids"
        )
    rows, row_ids = output, None
    if "lm_head.weight" in special:
        rows, row_ids = special["lm_head.weight"], ids
        _check_shape(
            path, "lm_head.weight", rows, (config.draft_vocab_size or config.vocab_size, config.hidden_size)
        )
    own = special.get("embed_tokens.weight", embedding)
    _check_shape(path, "embed_tokens.weight", own, (config.vocab_size, config.hidden_size))
    head = EagleHead(config, own.to(embedding.dtype), rows.to(output.dtype), ids, row_ids)
    expected = head.state_dict()
    found = {_own_name(config, name): tensor for name, tensor in tensors.items()}
    _check_names(path, config, set(expected), set(found))
    for name, tensor in found.items():
        _check_shape(path, _published_name(config, name), tensor, tuple(expected[name].shape))
    head.load_state_dict(found)
    return head.to(device=device, dtype=dtype or embedding.dtype).eval()


def save_head(folder: str | Path, head: EagleHead, dtype: torch.dtype = torch.float16) -> None:
    """Write `config.json` and `model.safetensors`; the target's tensors are not written, `d2t` is."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    tensors = {
        _published_name(head.config, name): tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in head.state_dict().items()
    }
    if head.config.draft_vocab_size is not None:
        ids = head.draft_ids.cpu()
        tensors["d2t"] = ids - torch.arange(len(ids))
    save_file(tensors, path / WEIGHTS[0], {"format": "pt"})
    (path / "config.json").write_text(json.dumps(head.config.to_dict(), indent=2) + "\n", encoding="utf-8")


def _read(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise ModelError(f"{folder} holds no weights; expected {' or '.join(WEIGHTS)} beside config.json")
    try:
        if path.suffix == ".safetensors":
            return path, load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{path} cannot be read as weights: {reason}") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ModelError(f"{path}: expected a table of tensors by name")
    return path, loaded


def _draft_ids(path: Path, config: EagleConfig, d2t: Tensor) -> Tensor:
    size = config.draft_vocab_size or len(d2t)
    _check_shape(path, "d2t", d2t, (size,))
    ids = torch.arange(size, device=d2t.device) + d2t.long()
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size or not bool((ids.diff() > 0).all()):
        raise ModelError(
            f"{path}: d2t leads to ids from {int(ids.min())} to {int(ids.max())}; expected ascending ids, each "
            f"once, in [0, {config.vocab_size})"
        )
    return ids


def _own_name(config: EagleConfig, name: str) -> str:
    """The name in our module of a published tensor."""
    if name.startswith("midlayer."):
        return name.replace("midlayer.", "layers.0.", 1)
    if config.layout == "eagle" and name in ("fc.weight", "fc.bias"):
        return f"layers.0.{name}"
    return name


def _published_name(config: EagleConfig, name: str) -> str:
    if config.num_steps > 1:
        return name
    if config.layout == "eagle3":
        return name.replace("layers.0.", "midlayer.", 1)
    return name.removeprefix("layers.0.") if name.startswith("layers.0.fc.") else name


def _check_names(path: Path, config: EagleConfig, expected: set[str], found: set[str]) -> None:
    for what, names in (("missing", expected - found), ("unknown", found - expected)):
        if names:
            listed = sorted(_published_name(config, name) for name in names)
            raise ModelError(
                f"{path}: {len(listed)} tensors are {what} for the layout {config.layout!r}, the first is "
                f"{listed[0]}; is config.json the one of these weights?"
            )


def _check_shape(path: Path, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ModelError(f"{path}: {name} has shape {list(tensor.shape)}, expected {list(shape)}")
