"""What a column of the mask benchmark is, and the columns that are ours: eager, raw calls, memset.

`prepare` does everything that an engine has done before the step (compiled, matchers at their position, tree
on the host, memory allocated); the call that it returns is one step and may be made any number of times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import tvm_ffi
from numpy.typing import NDArray

from benchmarks.grammars import Grammars
from benchmarks.scenes import Scene
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.staging import Resolved
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.grammar import NodeStatus, Vocabulary
from specgrammar.runtime.device import InlineDevice
from specgrammar.trees.tree import HostTree

Step = Callable[[], object]

WARM_UP_STEPS = 16
"""What an engine has done long before: steps that show how many threads pay."""


class Settled(FillWorkers):
    """As many threads as a scene's own first steps show to pay, for all that follow.

    An engine goes on trying others, in 3 of 100 steps; of the few that are timed here those would be most.
    """

    def __init__(self, max_threads: int | None = None) -> None:
        """See `FillWorkers`."""
        super().__init__(max_threads)
        self._settled: dict[str, int] = {}

    @classmethod
    def like(cls, workers: FillWorkers | None) -> Settled | None:
        """As many threads, which know nothing yet."""
        return None if workers is None else cls(workers.max_threads)

    def num_threads(self, num_nodes: int, kind: str = "walk") -> int:
        """See `FillWorkers`."""
        return self._settled.get(kind) or super().num_threads(num_nodes, kind)

    def settle(self, num_nodes: int, kind: str = "walk") -> None:
        """Stay with what the steps so far have shown for work of a kind."""
        size = self._size(num_nodes, kind)
        if size._spent:  # else nothing here is walked natively
            self._settled[kind] = min(size._spent, key=size.seconds_per_node)


class Column(Protocol):
    """One way to build a step's mask."""

    @property
    def name(self) -> str:
        """What the tables call it."""
        ...

    def prepare(self, scene: Scene, grammars: Grammars) -> Step | None:
        """One step of the scene as a call; None where this way cannot do such a scene.

        A step that returns a float says itself how many seconds it took (it ran in another process).
        """
        ...


@dataclass
class Rings:
    """Bitmask memory for each width of rows, kept from scene to scene as an engine keeps it."""

    device: InlineDevice = field(default_factory=InlineDevice)
    _rings: dict[int, BitmaskRing] = field(default_factory=dict)

    def ring(self, vocabulary: Vocabulary) -> BitmaskRing:
        """The ring for the vocabulary, with one slot."""
        words = vocabulary.num_words
        if words not in self._rings:
            self._rings[words] = BitmaskRing(self.device, words, num_slots=1)
        return self._rings[words]


@dataclass
class Eager:
    """Ours: `build_grammar_mask`, then the rows are given back.

    Attributes:
        backend: its name.
        rings: bitmask memory.
        workers: threads, as many as they find to pay; None for one.
    """

    backend: str
    rings: Rings
    workers: FillWorkers | None = None

    @property
    def name(self) -> str:
        """See `Column`."""
        return f"ours {self.backend}{', threads' if self.workers else ''}"

    def prepare(self, scene: Scene, grammars: Grammars) -> Step:
        """See `Column`."""
        workers = Settled.like(self.workers)
        build = replace(self, workers=workers).builder(scene, grammars)
        if workers is not None:
            for _ in range(WARM_UP_STEPS):
                build().discard()
            workers.settle(scene.tree.num_nodes)
        return lambda: build().discard()

    def builder(self, scene: Scene, grammars: Grammars) -> Callable[[], GrammarMask]:
        """Builds the scene's mask; it has to be discarded (or uploaded and applied) before the next one."""
        sessions = [grammars.session(self.backend, r.document.schema, r.committed) for r in scene.requests]
        staged, vocabulary = Resolved(scene.tree), grammars.vocabulary
        ring, device = self.rings.ring(vocabulary), self.rings.device

        def build() -> GrammarMask:
            return build_grammar_mask(sessions, staged, ring, device, vocabulary, workers=self.workers)

        build().discard()
        assert all(session.error is None for session in sessions)  # and a step does not change that: it repeats
        return build


@dataclass
class Raw:
    """The floor: the library's own accept, fill and rollback for the live nodes, recorded beforehand.

    Nothing is checked and nothing else is done; rollbacks that follow each other are one call.
    """

    backend: str
    rings: Rings

    @property
    def name(self) -> str:
        """See `Column`."""
        return f"raw {self.backend}"

    def prepare(self, scene: Scene, grammars: Grammars) -> Callable[[], NDArray[np.int32]]:
        """See `Column.prepare`; a step returns the rows, in the order of a walk depth first."""
        mask = Eager(self.backend, self.rings).builder(scene, grammars)()
        live, num_rows = mask.status == NodeStatus.LIVE, mask.num_rows
        mask.discard()
        rows = touched_rows(num_rows + 1, grammars.vocabulary)  # the last one for fills that nobody reads
        record = {"xgrammar": _record_xgrammar, "llguidance": _record_llguidance}[self.backend]
        calls = record(scene, grammars, live, rows)
        filled = rows[:-1]

        def step() -> NDArray[np.int32]:
            for call, arguments in calls:
                call(*arguments)
            return filled  # what the calls know by its address only

        return step


@dataclass
class Memset:
    """Writing the rows and nothing else: of the live nodes (what we upload), or of all of them (dense)."""

    live_only: bool
    rings: Rings

    @property
    def name(self) -> str:
        """See `Column`."""
        return "memset live" if self.live_only else "memset dense"

    def prepare(self, scene: Scene, grammars: Grammars) -> Step:
        """See `Column`."""
        mask = Eager("llguidance", self.rings).builder(scene, grammars)()
        num_rows = mask.num_rows if self.live_only else scene.tree.num_nodes
        mask.discard()
        rows = touched_rows(num_rows, grammars.vocabulary)
        return lambda: rows.fill(-1)


def touched_rows(num_rows: int, vocabulary: Vocabulary) -> NDArray[np.int32]:
    """Bitmask memory whose pages are mapped already, as a persistent buffer's are."""
    return np.full((num_rows, vocabulary.num_words), -1, np.int32)


Call = tuple[Callable[..., object], tuple[Any, ...]]


def live_walk(tree: HostTree, request: int, live: NDArray[np.bool_]) -> list[tuple[str, int]]:
    """A request's walk over its live nodes: `("accept", token)`, `("fill", 0)`, `("rollback", count)`."""
    nodes = tree.request_slice(request)
    parents, tokens = tree.parents()[nodes].tolist(), tree.draft_tokens[nodes].tolist()
    children: dict[int, list[int]] = {}
    for node in np.flatnonzero(live[nodes]).tolist():
        children.setdefault(parents[node], []).append(node)
    steps: list[tuple[str, int]] = []
    stack = [(node, 0) for node in children.get(-1, ())]
    here = 0
    while stack:
        node, depth = stack.pop()
        if here >= depth > 0:
            steps.append(("rollback", here - depth + 1))
        if depth:
            steps.append(("accept", tokens[node]))
        steps.append(("fill", 0))
        here = depth
        stack += [(child, depth + 1) for child in reversed(children.get(node, ()))]
    if here:
        steps.append(("rollback", here))
    return steps


def _record_xgrammar(
    scene: Scene, grammars: Grammars, live: NDArray[np.bool_], rows: NDArray[np.int32]
) -> list[Call]:
    import xgrammar

    array = tvm_ffi.from_dlpack(rows)
    calls: list[Call] = []
    row = 0
    for index, request in enumerate(scene.requests):
        matcher = xgrammar.GrammarMatcher(grammars.compiled("xgrammar", request.document.schema).native)
        assert all(matcher.accept_token(token) for token in request.committed)
        handle: Any = matcher._handle
        accept, fill, rollback = handle.accept_token, handle.fill_next_token_bitmask, handle.rollback
        for what, number in live_walk(scene.tree, index, live):
            match what:
                case "accept":
                    calls.append((accept, (number, False)))
                case "fill":
                    calls.append((fill, (array, row, False)))
                    row += 1
                case _:
                    calls.append((rollback, (number,)))
    return calls


def _record_llguidance(
    scene: Scene, grammars: Grammars, live: NDArray[np.bool_], rows: NDArray[np.int32]
) -> list[Call]:
    """With the fills that every right use needs before it turns off a path: see `LLGuidanceMatcher`."""
    address, width = rows.ctypes.data, rows.strides[0]
    unread = address + (len(rows) - 1) * width
    calls: list[Call] = []
    row = 0
    for index, request in enumerate(scene.requests):
        matcher = grammars.compiled("llguidance", request.document.schema).template.deep_copy()
        assert matcher.try_consume_tokens(list(request.committed)) == request.position
        depth = filled_at = 0
        for what, number in live_walk(scene.tree, index, live):
            match what:
                case "accept":
                    if filled_at > depth:
                        calls.append((matcher.unsafe_compute_mask_ptr, (unread, width)))
                        filled_at = depth
                    calls.append((matcher.try_consume_tokens, ([number],)))
                    depth += 1
                case "fill":
                    calls.append((matcher.unsafe_compute_mask_ptr, (address + row * width, width)))
                    row += 1
                    filled_at = depth
                case _:
                    calls.append((matcher.rollback, (number,)))
                    depth -= number
    return calls
