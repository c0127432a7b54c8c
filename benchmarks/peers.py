"""The peers that run in this process: sglang's own function, xgrammar's native walk, llguidance's executor."""

from __future__ import annotations

import dataclasses
import logging
import time
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import xgrammar
from llguidance import LLExecutor
from llguidance.numpy import fill_next_token_bitmask_par_with_draft_tokens

from benchmarks.columns import Step, touched_rows
from benchmarks.grammars import Grammars
from benchmarks.scenes import Scene
from benchmarks.sglang_source import load_definitions


@cache
def load_sglang() -> SimpleNamespace:
    """Load sglang's `generate_token_bitmask` and its `XGrammarGrammar`, from its source.

    Raises:
        RuntimeError: the source could not be fetched.
    """
    names: dict[str, Any] = {name: getattr(typing, name) for name in typing.__all__}
    names |= {"torch": torch, "time": time, "dataclasses": dataclasses, "dataclass": dataclasses.dataclass}
    names |= {"field": dataclasses.field, "logger": logging.getLogger("sglang")}
    names |= {name: getattr(xgrammar, name) for name in xgrammar.__all__}
    names |= load_definitions(
        "srt/constrained/base_grammar_backend.py", {"BaseGrammarObject", "GrammarStats"}, names
    )
    names |= {"is_pin_memory_available": torch.cuda.is_available}
    names |= load_definitions(
        "srt/constrained/xgrammar_backend.py", {"XGrammarGrammar", "_allocate_token_bitmask"}, names
    )
    names["TREE_TRAVERSE_TIME_THRESHOLD"] = 1
    walk = load_definitions("srt/speculative/spec_utils.py", {"generate_token_bitmask", "traverse_tree"}, names)
    return SimpleNamespace(
        generate_token_bitmask=walk["generate_token_bitmask"], grammar=names["XGrammarGrammar"]
    )


@dataclass
class Sglang:
    """sglang 0.5.23: `generate_token_bitmask` over its own grammar objects, memory allocated by it.

    Attributes:
        our_grammar: over the grammar that our xgrammar backend compiled, not over xgrammar's own conversion of
            the schema: what is left of the difference is the walk.
    """

    our_grammar: bool = False

    @property
    def name(self) -> str:
        """See `Column`."""
        return "sglang, our grammar" if self.our_grammar else "sglang"

    def prepare(self, scene: Scene, grammars: Grammars) -> Callable[[], torch.Tensor]:
        """Like `Column.prepare`; a step returns its rows, int32 `[num_nodes, words]`."""
        sglang = load_sglang()
        size = grammars.vocabulary.vocab_size
        requests = []
        for request in scene.requests:
            compiled = _compiled(request.document.schema, grammars, self.our_grammar)
            matcher = xgrammar.GrammarMatcher(compiled)  # its `max_rollback_tokens` does nothing any more
            grammar = sglang.grammar(matcher, size, compiled, None)
            for token in request.committed:
                grammar.accept_token(token)
            requests.append(SimpleNamespace(grammar=grammar))
        tokens, next_token, next_sibling = _dense(scene)

        def step() -> torch.Tensor:
            mask, _ = sglang.generate_token_bitmask(requests, next_token, next_sibling, tokens, size)
            return torch.as_tensor(mask)

        return step


@dataclass
class XGrammarWalk:
    """xgrammar's `traverse_draft_tree`, one call for each request, into persistent rows; see `Sglang`."""

    our_grammar: bool = False

    @property
    def name(self) -> str:
        """See `Column`."""
        return "xgrammar walk, our grammar" if self.our_grammar else "xgrammar walk"

    def prepare(self, scene: Scene, grammars: Grammars) -> Callable[[], torch.Tensor]:
        """See `Sglang.prepare`; rows of nodes that the walk does not reach keep what they had."""
        matchers = []
        for request in scene.requests:
            compiled = _compiled(request.document.schema, grammars, self.our_grammar)
            matcher = xgrammar.GrammarMatcher(compiled)
            assert all(matcher.accept_token(token) for token in request.committed)
            matchers.append(matcher)
        tokens, next_token, next_sibling = _dense(scene)
        rows = xgrammar.allocate_token_bitmask(scene.tree.num_nodes, grammars.vocabulary.vocab_size)
        of_request = torch.split(rows, scene.num_nodes)

        def step() -> torch.Tensor:
            links = zip(next_token.unbind(), next_sibling.unbind(), tokens.unbind(), strict=True)
            for matcher, (child, sibling, token), mask in zip(matchers, links, of_request, strict=True):
                matcher.traverse_draft_tree(child, sibling, token, mask)
            return rows

        return step


@dataclass
class LLGuidanceExecutor:
    """llguidance's executor over chains, on as many threads as there are."""

    num_threads: int

    @property
    def name(self) -> str:
        """See `Column`."""
        return f"llguidance executor x{self.num_threads}"

    def prepare(self, scene: Scene, grammars: Grammars) -> Step | None:
        """See `Column`."""
        if scene.kind != "chain":
            return None
        executor = LLExecutor(self.num_threads)
        width = scene.num_nodes
        tokens = scene.tree.draft_tokens.reshape(scene.bs, width).tolist()
        work = []
        for index, request in enumerate(scene.requests):
            matcher = grammars.llguidance_alone(request.document.schema).deep_copy()
            assert matcher.try_consume_tokens(list(request.committed)) == request.position
            # It writes one row and one more for each draft without looking where its memory ends.
            work.append((matcher, index * width, tokens[index][1:]))
        rows = touched_rows(scene.tree.num_nodes, grammars.vocabulary)
        return lambda: fill_next_token_bitmask_par_with_draft_tokens(executor, work, rows)


def _compiled(schema: str, grammars: Grammars, ours: bool) -> xgrammar.CompiledGrammar:
    if not ours:
        return grammars.xgrammar_alone(schema)
    native: xgrammar.CompiledGrammar = grammars.compiled("xgrammar", schema).native
    return native


def _dense(scene: Scene) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, first children and next siblings, int64 `[bs, N]`."""
    tokens, next_token, next_sibling = map(torch.from_numpy, scene.tree.to_dense(scene.num_nodes))
    return tokens, next_token, next_sibling
