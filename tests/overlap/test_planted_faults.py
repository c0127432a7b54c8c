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

from specgrammar.grammar.bitmask import RingSlot
from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.staging import Copying, FromDevice
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import Commit, DecodeBatch
from specgrammar.protocols.staging import Device, Launched, StagedTree
from specgrammar.runtime import masking
from specgrammar.runtime import step as step_module
from specgrammar.runtime.device import DoneEvent
from specgrammar.runtime.drafts import current_draft
from specgrammar.runtime.ledger import Entry, Ledger, RequestResult, StepResult
from specgrammar.runtime.trace import Trace
from specgrammar.testing.delayed_device import DelayedWork
from specgrammar.trees.tree import DraftTree, HostTree
from tests.overlap.masks_in_flight import run_masks
from tests.overlap.producers import Choose
from tests.overlap.schedules import Seeded, run_schedule

Play = Callable[[Choose], object]

_NUM_SCHEDULES = 40
_ENOUGH = 3

ON_DEVICE = partial(run_schedule, algorithm="device", policy="eager")
ON_DEVICE_LAZILY = partial(run_schedule, algorithm="device", policy="lazy")
ON_HOST = partial(run_schedule, algorithm="ngram", policy="eager")
ON_HOST_LAZILY = partial(run_schedule, algorithm="ngram", policy="lazy")
PLAYS: list[Play] = [ON_DEVICE, ON_DEVICE_LAZILY, ON_HOST, ON_HOST_LAZILY, run_masks]

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


@pytest.mark.parametrize("play", PLAYS, ids=["device", "device, lazy", "host", "host, lazy", "masks"])
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


@pytest.mark.parametrize(("play", "kind"), [(ON_HOST_LAZILY, "IndexError"), (run_masks, OTHER_ROWS)])
def test_the_upload_of_a_mask_is_not_waited_for(play: Play, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager masking on a CPU applies masks in launched work, which is behind the upload in any case."""
    upload = GrammarMask.upload

    def without_event(self: GrammarMask) -> None:
        upload(self)
        self._uploaded = DoneEvent()

    monkeypatch.setattr(GrammarMask, "upload", without_event)
    assert_noticed(play, kind)


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
