"""Tiny random models, trees and batches for the tests of this folder."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specgrammar.protocols.drafter import CausalDrafter
from specgrammar.protocols.spec import CommittedTokens, DecodeBatch, RequestView
from specgrammar.protocols.staging import Launched
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.outcome import Outcome
from specgrammar.spec.roots import last_tokens
from specgrammar.spec.sampling import SamplingParams
from specgrammar.trees.tree import DraftTree, HostTree

VOCAB = 64
MAX_LENGTH = 640


def tiny_model(kind: str = "llama", attention: str = "sdpa", *, seed: int = 0) -> PreTrainedModel:
    """A random fp32 model whose attention matters: large weights, so that the context moves the logits."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": MAX_LENGTH,
        "initializer_range": 0.3,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if kind != "gpt2":
        sizes["intermediate_size"] = 48
    if kind in ("llama", "qwen2"):
        sizes["num_key_value_heads"] = 2
    torch.manual_seed(seed)
    return random_model(kind, attention, **sizes)


def random_model(kind: str, attention: str | None = None, **config: Any) -> PreTrainedModel:
    """A causal model of any type that transformers knows, with random weights."""
    described = AutoConfig.for_model(kind, **config)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(described, attn_implementation=attention)
    return model


@torch.no_grad()
def plain_logits(model: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """The logits behind a sequence by an ordinary forward without a cache."""
    model.train(False)
    logits: torch.Tensor = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0, -1]
    return logits


def greedy_tokens(model: PreTrainedModel, tokens: Sequence[int], count: int) -> list[int]:
    """An ordinary greedy continuation."""
    out = list(tokens)
    for _ in range(count):
        out.append(int(plain_logits(model, out).argmax()))
    return out[len(tokens) :]


def view(name: str, tokens: Sequence[int], sampling: SamplingParams | None = None) -> RequestView:
    """A request that is far from its end."""
    return RequestView(name, tokens, 1, 32, sampling or SamplingParams())


def batch_of(step: int, sequences: dict[str, list[int]], names: Sequence[str]) -> DecodeBatch:
    """The batch of the named requests in the given order."""
    return DecodeBatch(step, tuple(view(name, sequences[name]) for name in names))


def random_parents(rng: np.random.Generator, num_nodes: int) -> list[int]:
    """A random tree: every node hangs below an earlier one."""
    return [-1, *(int(rng.integers(i)) for i in range(1, num_nodes))]


def tree_of(
    step: int, roots: Sequence[int], parents: Sequence[list[int]], rng: np.random.Generator
) -> DraftTree:
    """Trees of the given shapes with random tokens below the given roots."""
    cu_nodes = np.cumsum([0, *map(len, parents)], dtype=np.int64)
    tokens = rng.integers(VOCAB, size=int(cu_nodes[-1]), dtype=np.int64)
    tokens[cu_nodes[:-1]] = roots
    host = HostTree.from_parents(
        cu_nodes, tokens, np.array([p for tree in parents for p in tree], dtype=np.int64)
    )
    return DraftTree(step, cu_nodes, host)


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root down to a node, both included."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def accepted(paths: Sequence[Sequence[int]], bonus: Sequence[int]) -> Launched[AcceptedPaths]:
    """Paths (each from node 0 down) as the target is told of them."""
    index: NDArray[np.int64] = np.full((len(paths), max(map(len, paths))), -1, dtype=np.int64)
    for row, path in enumerate(paths):
        index[row, : len(path)] = path
    lengths = np.array([len(path) - 1 for path in paths], dtype=np.int64)
    found = AcceptedPaths(index, lengths, np.array(bonus, dtype=np.int64))
    return Outcome(lambda: found)


def drafted(
    drafter: CausalDrafter, batch: DecodeBatch, num_tokens: int, *, sampled: bool
) -> tuple[NDArray[np.int64], torch.Tensor | None]:
    """Drafts without their roots, int64 `[bs, num_tokens]`, and q, when they are made; checks the roots."""
    drafts = drafter.draft(batch, num_tokens, sampled=sampled)
    drafts.made.wait()
    assert drafts.tokens.dtype == torch.int64
    committed = None if batch.unresolved is None else batch.unresolved.value()
    assert drafts.tokens[:, 0].tolist() == last_tokens(batch, committed, torch.device("cpu")).tolist()
    return drafts.tokens[:, 1:].numpy(), drafts.q


class InFlight:
    """An unresolved step that committed these tokens; None for a request that was not in it."""

    def __init__(self, tokens: Sequence[list[int] | None]) -> None:
        self.takes_part = [part is not None for part in tokens]
        self._tokens = [part or [] for part in tokens]
        self.max_tokens = max(1, *map(len, self._tokens))

    def value(self) -> CommittedTokens:
        """The tokens."""
        padded = [[*row, *[-1] * (self.max_tokens - len(row))] for row in self._tokens]
        counts = torch.tensor([len(row) for row in self._tokens])
        return CommittedTokens(torch.tensor(padded, dtype=torch.int64).view(len(padded), -1), counts)


def generate(model: PreTrainedModel, tokens: Sequence[int], count: int, **options: Any) -> list[int]:
    """What transformers' own greedy `generate` makes of a prompt, the prompt included."""
    ids = torch.tensor([list(tokens)])
    decode: Any = model.generate
    found = decode(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, **options)
    return [int(token) for token in found[0]]
