"""Requests of sglang's with the same grammar twice: as its own object, and as ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import xgrammar
from numpy.typing import NDArray

from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.testing.toys import VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.sglang_adapter.pieces import load
from tests.toys import backend, compiled

THINK_END = (0, 1, 0)
"""The end of the reasoning, for gates: a marker that overlaps itself."""


def theirs(name: str, spec: GrammarSpec) -> Any:
    """sglang's own object over the grammar that our backend compiled."""
    made: Any = compiled(name, spec)
    if name == "xgrammar":
        matcher = xgrammar.GrammarMatcher(made.native)
        return load().XGrammarGrammar(matcher, VOCABULARY.vocab_size, made.native, None)
    tokenizer: Any = backend(name)
    return load().GuidanceGrammar(tokenizer._tokenizer, "", ll_matcher=made.template.deep_copy())


def ours(name: str, spec: GrammarSpec) -> Any:
    """Our object."""
    return load().grammar.SglangGrammar(
        backend(name), compiled(name, spec), load().GrammarStats(dispatch_type=spec.kind)
    )


def thinking(grammar: Any, *, reasoning: bool = True) -> Any:
    """A grammar behind sglang's reasoning gate."""
    gated = load().ReasonerGrammarObject(grammar, THINK_END)
    gated.maybe_init_reasoning(reasoning)
    return gated


def request(grammar: Any) -> SimpleNamespace:
    """What sglang's functions read of a request."""
    return SimpleNamespace(
        rid="r", grammar=grammar, is_retracted=False, inflight_middle_chunks=0, finished=lambda: False
    )


def tree_of(tree: HostTree) -> Any:
    """sglang's tree of a batch of ours, all with the nodes of the largest."""
    tokens, next_token, next_sibling = map(torch.from_numpy, tree.to_dense())
    return load().GrammarTree.from_host(next_token, next_sibling, tokens)


def rows_of(function: Any, grammars: list[Any], tree: HostTree) -> NDArray[np.int32]:
    """The rows `[nodes, words]` that sglang's function, or the hook around it, makes of a batch."""
    info = SimpleNamespace(vocab_size=VOCABULARY.vocab_size, grammar_mask="an earlier step's")
    mask = function(
        reqs=[request(grammar) for grammar in grammars],
        tree=tree_of(tree),
        sampling_info=info,
        device=torch.device("cpu"),
        barrier=None,
    )
    assert info.grammar_mask is None
    rows: NDArray[np.int32] = mask.vocab_mask.numpy().copy()
    if isinstance(mask, load().mask.SglangMask):
        mask._mask.discard()  # as `apply` does; an error's traceback may keep the mask alive
    return rows
