"""The lazy column of the mask benchmark: everything that lazy masking does behind the forward.

A step is timed from the logits to the paths: the best tokens of all nodes are read back, the path that the
target takes is walked, and where none of a node's best tokens is legal its row is filled, copied to the
device's memory, applied there and drawn again. The first draw is the sampler's, masked or not, and is made
before.

The target agrees with documents and grammars as SmolLM2-135M-Instruct was measured to: at every token it leaves
the document with `LEAVES`, and it would rather have written something illegal, as often and for as many ranks.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.columns import WARM_UP_STEPS, Settled
from benchmarks.grammars import Grammars
from benchmarks.scenes import Scene
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.draws import Draws, short_id_dtype
from specgrammar.grammar.staging import Resolved
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.spec import DecodeBatch, RequestView
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.lazy import LazyMasking
from specgrammar.runtime.lazy_walk import NUM_BEST, LazyWalk
from specgrammar.runtime.ledger import Ledger
from specgrammar.runtime.masking import LaunchedStep, MaskParts
from specgrammar.runtime.results import committed_tokens
from specgrammar.runtime.trace import Trace
from specgrammar.spec.sampling import SamplingParams
from specgrammar.trees.tree import DraftTree, HostTree

LEAVES = 0.5
"""How often the target writes something else that is legal and not drafted, where there is such a token: with
prompt lookup SmolLM2-135M-Instruct commits 1.99 tokens a step under the schemas of the first 40 BFCL prompts. 0
takes all that a tree has of the document."""
NUM_MEASURED = 882
"""Tokens that SmolLM2-135M-Instruct decoded greedily under the schemas of the first 40 BFCL prompts."""
MIN_RANKS = {1: 174, 2: 119, 4: 103, 8: 90, 16: 67, 32: 29, 64: 11, 96: 3}
"""For how many of them at least that many tokens were more probable than the best legal one."""


class SeparateMemory(InlineDevice):
    """Copies at once, but has memory of its own: rows are uploaded, and one round of second draws is all."""

    shares_host_memory = False

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copy now, by this thread alone: torch would wake its own for it, which no copy engine does."""
        assert (destination.shape, destination.dtype) == (source.shape, source.dtype)
        assert destination.is_contiguous()
        assert source.is_contiguous()
        ctypes.memmove(destination.data_ptr(), source.data_ptr(), source.nbytes)


@dataclass(frozen=True)
class Drawn:
    """Logits that are there."""

    logits: torch.Tensor

    def wait(self) -> torch.Tensor:
        """The logits."""
        return self.logits

    def value(self) -> torch.Tensor:
        """The logits."""
        return self.logits


def reads_back(best: torch.Tensor) -> type[LazyWalk]:
    """A walk that copies what the device drew, ids `[num_nodes, NUM_BEST]`, instead of drawing."""
    num_sure = torch.full((len(best),), best.shape[1] - 1, dtype=torch.int32)

    class ReadsBack(LazyWalk):
        def draw_at_once(self, tree: HostTree) -> Draws:
            assert tree.num_nodes == len(best)
            on_host, num_on_host = self._readback.read(best, num_sure)
            return Draws(on_host, num_on_host)

    return ReadsBack


@dataclass
class Lazy:
    """Ours: `LazyMasking.verify` behind the forward and the first draw.

    Attributes:
        backend: its name.
        workers: threads, as many as they find to pay.
    """

    backend: str
    workers: FillWorkers | None = None

    @property
    def name(self) -> str:
        """See `Column`."""
        return f"lazy {self.backend}"

    def prepare(
        self,
        scene: Scene,
        grammars: Grammars,
        see: Callable[[tuple[int, ...]], None] | None = None,
        leaves_with: float = LEAVES,
    ) -> Callable[[], float]:
        """See `Column`; a step returns its seconds, without taking its moves back for the next one.

        Args:
            scene: one step of a batch.
            grammars: of the vocabulary.
            see: called with what each request would commit.
            leaves_with: see `LEAVES`.
        """
        vocabulary = grammars.vocabulary
        sessions = [grammars.session(self.backend, r.document.schema, r.committed) for r in scene.requests]
        device = SeparateMemory()
        ring = BitmaskRing(device, vocabulary.num_words, num_slots=1)
        workers = Settled.like(self.workers)
        parts = MaskParts(Ledger(), ring, device, vocabulary, workers, "target_only", Trace())
        best = torch.from_numpy(best_tokens(scene, grammars, self.backend, leaves_with))
        logits = torch.zeros((scene.tree.num_nodes, vocabulary.vocab_size))
        step = LaunchedStep(
            batch_of(scene),
            sessions,
            DraftTree.from_host(0, scene.tree),
            Resolved(scene.tree),
            Drawn(logits),
            want_logprobs=False,
            launched_at=0.0,
        )
        masking = LazyMasking(parts, reads_back(best.to(short_id_dtype(vocabulary.vocab_size))))

        def run(see: Callable[[tuple[int, ...]], None] | None = None) -> float:
            begin = time.perf_counter()
            verified = masking.verify(step)
            spent = time.perf_counter() - begin
            if see is not None:
                tokens, counts = committed_tokens(scene.tree, verified.paths.wait())
                for row, count in zip(tokens.tolist(), counts.tolist(), strict=True):
                    see(tuple(row[:count]))
            for session in sessions:
                session.advance()
                assert session.error is None, session.error
            return spent

        if workers is not None:
            for _ in range(WARM_UP_STEPS):
                run()
            workers.settle(scene.bs, "follow")
        return partial(run, see)


def best_tokens(
    scene: Scene, grammars: Grammars, backend: str, leaves_with: float = LEAVES, seed: int = 0
) -> NDArray[np.int64]:
    """The best tokens of every node's unmasked logits, int64 `[num_nodes, NUM_BEST]`, best first.

    On the path of the document its next token has a rank of the measured distribution, and before it stand
    tokens that are illegal there, any of the vocabulary; other nodes are not looked at.
    """
    rng = np.random.default_rng(seed)
    vocabulary, tree = grammars.vocabulary, scene.tree
    tokens, first, sibling = (
        array.tolist() for array in (tree.draft_tokens, tree.retrieve_next_token, tree.retrieve_next_sibling)
    )
    row = np.zeros((1, vocabulary.num_words), np.int32)
    best = np.zeros((tree.num_nodes, NUM_BEST), np.int64)
    for start, request in zip(tree.cu_nodes.tolist(), scene.requests, strict=False):
        text = (*request.document.tokens[request.position :], vocabulary.stop_ids[-1])
        session = grammars.session(backend, request.document.schema, request.committed)
        assert session.cursor is not None
        node = 0
        for token in text:
            session.cursor.matcher.fill_bitmask(row, 0)
            legal = np.unpackbits(row[0].view(np.uint8), count=vocabulary.vocab_size, bitorder="little")
            best[start + node] = rng.choice(np.flatnonzero(legal == 0), NUM_BEST)
            rank = _rank(int(rng.integers(NUM_MEASURED)))
            legal[_drafted(node, start, tokens, first, sibling)] = 0
            others = np.flatnonzero(legal)  # none where the grammar leaves no choice
            leaves = others.size > 0 and rng.random() < leaves_with
            if rank < NUM_BEST - 1:
                best[start + node, rank] = rng.choice(others) if leaves else token
            if leaves:
                break
            node = _child(node, token, start, tokens, first, sibling)
            if node < 0 or not session.cursor.step(token):
                break
    return best


def _rank(place: int) -> int:
    """The rank of the best legal token, at the `place` of those that were measured; the middle of its class."""
    bounds = [rank for rank, count in MIN_RANKS.items() if place < count]
    if not bounds:
        return 0
    further = [rank for rank in MIN_RANKS if rank > bounds[-1]]
    return (bounds[-1] + further[0]) // 2 if further else NUM_BEST


def _drafted(
    node: int, start: int, tokens: Sequence[int], first: Sequence[int], sibling: Sequence[int]
) -> list[int]:
    """The tokens of a node's children."""
    found, child = [], first[start + node]
    while child >= 0:
        found.append(tokens[start + child])
        child = sibling[start + child]
    return found


def _child(
    node: int, token: int, start: int, tokens: Sequence[int], first: Sequence[int], sibling: Sequence[int]
) -> int:
    child = first[start + node]
    while child >= 0 and tokens[start + child] != token:
        child = sibling[start + child]
    return child


def batch_of(scene: Scene) -> DecodeBatch:
    """The greedy requests of a scene."""
    greedy = SamplingParams()
    views = [RequestView(str(i), r.committed, 1, scene.num_nodes, greedy) for i, r in enumerate(scene.requests)]
    return DecodeBatch(0, tuple(views))
