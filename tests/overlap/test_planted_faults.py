"""Each guard of the overlap is taken away once, and the schedules must notice.

A test plants one fault and plays a few dozen schedules: with the guard they all pass, without it some fail, and
by what the guard is there to prevent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from specgrammar.config import Config
from specgrammar.grammar.bitmask import RingSlot
from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.staging import Copying, FromDevice
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.grammar import GrammarSpec, Vocabulary
from specgrammar.protocols.spec import Commit, DecodeBatch
from specgrammar.protocols.staging import Device, Launched, StagedTree
from specgrammar.runtime import masking, scheduler
from specgrammar.runtime import step as step_module
from specgrammar.runtime.device import DoneEvent
from specgrammar.runtime.drafts import current_draft
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.ledger import Entry, Ledger, RequestResult, StepResult
from specgrammar.runtime.request import Request
from specgrammar.runtime.results import PublishedStep, StepInFlight
from specgrammar.runtime.running import Running
from specgrammar.runtime.trace import Trace
from specgrammar.spec.chain import ChainAlgorithm
from specgrammar.testing.delayed_device import DelayedDevice, DelayedWork
from specgrammar.testing.late_drafter import LateDrafter
from specgrammar.testing.late_target import LateAdapter, LateTarget
from specgrammar.testing.schedules import Choose, Seeded
from specgrammar.trees.tree import DraftTree, HostTree
from tests.overlap.masks_in_flight import run_masks
from tests.overlap.schedules import run_schedule
from tests.toys import backend

Play = Callable[[Choose], object]

_NUM_SCHEDULES = 40
_ENOUGH = 3

ON_DEVICE = partial(run_schedule, algorithm="device", policy="eager")
ON_DEVICE_LAZILY = partial(run_schedule, algorithm="device", policy="lazy")
ON_HOST = partial(run_schedule, algorithm="ngram", policy="eager")
ON_HOST_LAZILY = partial(run_schedule, algorithm="ngram", policy="lazy")
ON_DEVICE_ACROSS_STEPS = partial(run_schedule, algorithm="model", policy="eager")
PLAYS: list[Play] = [ON_DEVICE_ACROSS_STEPS, ON_DEVICE, ON_DEVICE_LAZILY, ON_HOST, ON_HOST_LAZILY, run_masks]

OTHER_OUTPUT = "another output than alone|not a beginning of its tokens"
OTHER_HISTORY = f"{OTHER_OUTPUT}|the cache is not the history|but the history ends with"
OTHER_ROWS = "a row of another step's"
POISON = "TreeError: request"
TOO_EARLY = "was read before it was done"


def failures(play: Play) -> Iterator[str]:
    """What the schedules fail with, one after the other."""
    for seed in range(_NUM_SCHEDULES):
        try:
            play(Seeded(seed))
        except Exception as error:
            yield f"{type(error).__name__}: {error}"


def assert_noticed(play: Play, kind: str) -> None:
    """Some of the schedules fail, and by what is expected."""
    found, num_alike = [], 0
    for failure in failures(play):
        found.append(failure)
        num_alike += re.search(kind, failure) is not None
        if num_alike == _ENOUGH:
            return
    pytest.fail(f"{num_alike} schedules noticed the fault; these failed: {found}")


@pytest.mark.parametrize(
    "play", PLAYS, ids=["across steps", "device", "device, lazy", "host", "host, lazy", "masks"]
)
def test_with_every_guard_in_its_place_they_pass(play: Play) -> None:
    assert not list(failures(play))


# -- event not waited for ----------------------------------------------------------------------------------


@pytest.mark.parametrize("play", [ON_DEVICE, ON_DEVICE_LAZILY])
def test_the_copy_of_a_tree_is_not_waited_for(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(self: Copying) -> HostTree:
        return HostTree(self._drafted.cu_nodes, *self._parts.values())

    monkeypatch.setattr(Copying, "resolve", resolve)
    assert_noticed(play, POISON)


def test_the_forward_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DelayedWork, "wait", DelayedWork.value)
    assert_noticed(ON_HOST, TOO_EARLY)


def test_the_upload_of_a_mask_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine applies masks in launched work, which is behind the upload in any case."""
    upload = GrammarMask.upload

    def without_event(self: GrammarMask) -> None:
        upload(self)
        self._uploaded = DoneEvent()

    monkeypatch.setattr(GrammarMask, "upload", without_event)
    assert_noticed(run_masks, OTHER_ROWS)


# -- buffer reused early -----------------------------------------------------------------------------------


def test_a_slot_is_given_back_without_its_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where logits are the CPU's the engine waits for each mask in its step: `run_masks` alone can see it."""
    release = RingSlot.release
    monkeypatch.setattr(RingSlot, "release", lambda self, _: release(self, None))
    assert_noticed(run_masks, OTHER_ROWS)


def test_a_slot_is_handed_out_before_its_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RingSlot, "ready", lambda _: True)
    monkeypatch.setattr(RingSlot, "wait", lambda _: None)
    assert_noticed(run_masks, OTHER_ROWS)


# -- barrier skipped ---------------------------------------------------------------------------------------


def test_the_step_skips_the_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grammars move where a request leaves, but not before the masks are built."""

    def build(*args: Any, workers: FillWorkers | None, **barrier: object) -> GrammarMask:
        assert list(barrier) == ["barrier"]
        return build_grammar_mask(*args, workers=workers)

    monkeypatch.setattr(masking, "build_grammar_mask", build)
    assert_noticed(ON_DEVICE, OTHER_OUTPUT)


@pytest.mark.parametrize("play", [ON_DEVICE, ON_HOST_LAZILY])
def test_nobody_keeps_the_barrier(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the text does not tell, the grammars of what ended do."""
    monkeypatch.setattr(Ledger, "advance_pending", lambda _: None)
    assert_noticed(play, f"{OTHER_OUTPUT}|the grammar is (ahead of|behind) the history")


# -- advanced twice ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("play", [ON_DEVICE, ON_HOST_LAZILY])
def test_a_grammar_moves_twice(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = GrammarSession.advance

    def twice(self: GrammarSession) -> None:
        before = self._num_advanced
        advance(self)
        self._num_advanced = before
        advance(self)

    monkeypatch.setattr(GrammarSession, "advance", twice)
    assert_noticed(play, OTHER_OUTPUT)


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_result_comes_twice(is_guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step's result is published again behind the next one's; its step tells that it was applied."""
    publish, apply = Ledger.publish, Ledger._apply

    def again(self: Ledger, result: Launched[StepResult]) -> None:
        publish(self, result)
        publish(self, result)

    def forgetting(self: Ledger, entry: Entry, result: RequestResult) -> Commit:
        entry.last_step = -1
        return apply(self, entry, result)

    monkeypatch.setattr(Ledger, "publish", again)
    if is_guarded:
        assert not list(failures(ON_DEVICE))
        return
    monkeypatch.setattr(Ledger, "_apply", forgetting)
    assert_noticed(ON_DEVICE, OTHER_HISTORY)


# -- stale draft accepted ----------------------------------------------------------------------------------


@pytest.mark.parametrize("play", [ON_DEVICE, ON_HOST, ON_HOST_LAZILY])
def test_drafts_of_any_step_are_accepted(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "current_draft", lambda tree, *_: tree)
    assert_noticed(play, OTHER_HISTORY)


@pytest.mark.parametrize("play", [ON_HOST, ON_HOST_LAZILY])
def test_drafts_are_accepted_by_their_step_alone(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The roots of the tree are not compared with the histories."""

    def by_step(
        tree: DraftTree, batch: DecodeBatch, vocabulary: Vocabulary, device: Device, trace: Trace
    ) -> DraftTree:
        is_of_step = tree.step == batch.step and tree.bs == len(batch)
        return tree if is_of_step else current_draft(tree, batch, vocabulary, device, trace)

    monkeypatch.setattr(step_module, "current_draft", by_step)
    assert_noticed(play, OTHER_HISTORY)


# -- copy issued after the launch --------------------------------------------------------------------------


@pytest.mark.parametrize("play", [ON_DEVICE, ON_DEVICE_LAZILY])
def test_the_copy_is_issued_after_the_launch(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward works in the memory of its inputs: behind it the copy finds other tokens."""
    stage = FromDevice.stage

    @dataclass
    class WhenAsked:
        strategy: FromDevice
        tree: DraftTree
        staged: StagedTree | None = None

        def resolve(self) -> HostTree:
            if self.staged is None:
                self.staged = stage(self.strategy, self.tree)
            return self.staged.resolve()

    monkeypatch.setattr(FromDevice, "stage", lambda self, tree: WhenAsked(self, tree))
    assert_noticed(play, OTHER_HISTORY)


# -- the step in flight is taken for another ---------------------------------------------------------------


def test_positions_are_those_of_before_the_step_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is keyed by position: what is drawn behind an unresolved step would be drawn with another's."""
    monkeypatch.setattr(DecodeBatch, "resolved", lambda batch: batch)
    assert_noticed(ON_DEVICE_ACROSS_STEPS, OTHER_OUTPUT)


def test_a_request_is_given_what_another_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the step in flight are taken in their own order, not by the requests' names."""

    def behind(self: PublishedStep, request_ids: Sequence[str | None], device: torch.device) -> StepInFlight:
        rows = tuple(row if row < len(self.request_ids) else -1 for row in range(len(request_ids)))
        return StepInFlight(self, rows, device)

    monkeypatch.setattr(PublishedStep, "behind", behind)
    assert_noticed(ON_DEVICE_ACROSS_STEPS, OTHER_HISTORY)


def test_a_request_is_given_what_one_before_it_of_its_name_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is aborted leaves at once, and its id may be another's before its last step is known."""

    def by_name(step: PublishedStep, running: Running) -> bool:
        return running.request.request_id in step.request_ids

    def play(choose: Choose) -> None:
        device = DelayedDevice()
        adapter = LateAdapter(device, LateTarget(device), LateDrafter(device))
        config = Config(mask_policy="eager", max_batch_size=3)
        algorithm = ChainAlgorithm(drafter="toy", num_draft_tokens=1 + choose(3))
        engine = Engine(adapter, backend("xgrammar"), algorithm, config)
        engine.add(Request("long", (1, 2), GrammarSpec.regex("(ab){80}"), max_new_tokens=200))
        engine.add(Request("a", (2, choose(9)), max_new_tokens=50))
        engine.step()
        engine.abort("a")
        engine.add(Request("a", (3, choose(9)), max_new_tokens=50))
        for _ in range(4):
            engine.step()

    assert not list(failures(play))
    monkeypatch.setattr(scheduler, "is_in", by_name)
    assert_noticed(play, OTHER_HISTORY)


# -- a mask left over --------------------------------------------------------------------------------------


@pytest.mark.parametrize("play", [ON_DEVICE, ON_HOST])
def test_rows_of_an_earlier_step_are_applied(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a prompt's step, or any other, left in a slot is behind the last row that a mask owns."""
    take_over = GrammarMask.__init__

    def greedily(self: GrammarMask, rows: MaskRows, slot: RingSlot, *rest: Any) -> None:
        take_over(self, rows, slot, *rest)
        left = slot.owners[self.num_rows : len(rows.statuses)]
        left[left >= len(rows.statuses)] = -1
        self.num_rows += len(left)

    monkeypatch.setattr(GrammarMask, "__init__", greedily)
    assert_noticed(play, OTHER_OUTPUT)


# -- retained tokens ignored -------------------------------------------------------------------------------


@pytest.mark.parametrize("play", [ON_DEVICE, ON_DEVICE_LAZILY])
def test_tokens_behind_the_end_are_kept(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: GrammarSession, tokens: Sequence[int]) -> int:
        for token in tokens:
            self.output.append(token)
            self.finish = self.finish or self.stops.finish_reason(self.output, self.vocabulary)
        return len(tokens)

    monkeypatch.setattr(GrammarSession, "keep", keep)
    assert_noticed(play, OTHER_OUTPUT)


@pytest.mark.parametrize("play", [ON_DEVICE, ON_DEVICE_LAZILY])
def test_the_history_takes_what_was_not_kept(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Ledger._apply

    def whole(self: Ledger, entry: Entry, result: RequestResult) -> Commit:
        commit = apply(self, entry, result)
        entry.tokens.extend(result.tokens[len(commit.tokens) :])
        return commit

    monkeypatch.setattr(Ledger, "_apply", whole)
    assert_noticed(play, "history and output differ")
