"""Engines in a world, whose algorithm is watched while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from specgrammar.protocols.adapter import EngineAdapter
from specgrammar.protocols.staging import Device
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import RequestOutput
from specgrammar.spec.sampling import MaskPolicyChoice
from specgrammar.testing.checks.base import Story, expect
from specgrammar.testing.schedules import check_alike, told_request
from specgrammar.testing.watched import Watched
from specgrammar.testing.world import MakeAlgorithm, World


@dataclass
class Run:
    """An engine with a watched algorithm.

    Attributes:
        engine: the engine.
        watched: its algorithm.
        adapter: its adapter.
        world: where it runs.
    """

    engine: Engine
    watched: Watched
    adapter: EngineAdapter
    world: World

    def outputs(self, numbers: Sequence[int], story: Story) -> dict[int, RequestOutput]:
        """What some requests of the world's come to, all together."""
        for number in numbers:
            request = replace(self.world.requests[number], request_id=str(number))
            story.tell(f"add {number}: {told_request(request, self.world.show)}")
            self.engine.add(request)
        return {int(output.request_id): output for output in self.engine.generate([])}

    def check(self, numbers: Sequence[int], story: Story) -> None:
        """All of them come to what they come to alone."""
        outputs = self.outputs(numbers, story)
        for number in numbers:
            expect(number in outputs, f"request {number} has no output")
            check_alike(outputs[number], self.world.alone(number), self.world.show)


@contextmanager
def running(
    make: MakeAlgorithm,
    world: World,
    device: Device,
    mask_policy: MaskPolicyChoice = "eager",
    wrap: Callable[[EngineAdapter], EngineAdapter] = lambda adapter: adapter,
) -> Iterator[Run]:
    """An engine over a fresh adapter; what is wrong with a proposal is said before what comes of it."""
    with world.opened(device) as opened:
        adapter = wrap(opened)
        watched = Watched(make(), world.show)
        if mask_policy == "lazy" and getattr(adapter.target, "supports_resample", False) is not True:
            mask_policy = "auto"
        engine = world.engine(adapter, watched, mask_policy=mask_policy)
        try:
            yield Run(engine, watched, adapter, world)
        except Exception:
            watched.judge(waits=True)
            raise
        watched.judge(waits=True)


def some(world: World, *, sampled: bool | None = None, constrained: bool | None = None) -> list[int]:
    """Numbers of requests of the world's: those that are greedy or sampled, with or without a grammar."""
    numbers = [
        number
        for number, request in enumerate(world.requests)
        if sampled in (None, not request.sampling.greedy) and constrained in (None, request.grammar is not None)
    ]
    return numbers[: max(2, world.num(len(numbers)))]
