"""`World`: what an algorithm is checked in: a target, requests, and what these come to without drafts.

`TOY_WORLD` costs nothing and shows most: a model of a few lines on a stream of any kind. `adapter_world` is
made around a real model, for algorithms that the toy cannot serve (a draft head belongs to its target) and for
being sure of the two together; each forward costs there, so fewer examples are played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from specgrammar.config import Config
from specgrammar.errors import ConfigError, ModelError, PluginError
from specgrammar.protocols.adapter import EngineAdapter
from specgrammar.protocols.drafter import CausalDrafter
from specgrammar.protocols.grammar import GrammarBackend, GrammarSpec, Vocabulary
from specgrammar.protocols.spec import ProducerContext, SpecAlgorithm
from specgrammar.protocols.staging import Device
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.spec.none import NoSpeculation
from specgrammar.spec.sampling import AcceptMethod, MaskPolicyChoice, SamplingParams
from specgrammar.testing.late_drafter import LateDrafter
from specgrammar.testing.late_target import LateAdapter, LateTarget, logits_behind
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.requests import REQUESTS
from specgrammar.testing.toy_target import join_in_order
from specgrammar.testing.toys import VOCABULARY, texts_of

MakeAlgorithm = Callable[[], SpecAlgorithm]
"""What producer and worker checks take: the class itself, or a `functools.partial` with its options."""

MAX_BATCH_SIZE = 4


@dataclass(frozen=True, eq=False)
class World:
    """Where an algorithm is checked.

    Attributes:
        backend: compiles the requests' grammars.
        requests: of every kind; their ids are numbers.
        tokens: some ids, of which histories are made up where no model is asked.
        opened: an adapter that nobody else uses meanwhile: on the device that is given, or on its own.
        has_any_device: whether it runs on a device that is given.
        effort: which share of the toy world's examples can be afforded.
        num_steps: the longest play of a producer alone.
        show: tokens for people.
        logits_behind: the target's logits behind some tokens, where they can be had for nothing.
    """

    backend: GrammarBackend
    requests: tuple[Request, ...]
    tokens: tuple[int, ...]
    opened: Callable[[Device], AbstractContextManager[EngineAdapter]]
    has_any_device: bool
    effort: float
    show: Callable[[Sequence[int]], str]
    num_steps: int = 14
    logits_behind: Callable[[Sequence[int]], torch.Tensor] | None = None
    _alone: dict[int, RequestOutput] = field(default_factory=dict)

    @property
    def vocabulary(self) -> Vocabulary:
        """The target's."""
        return self.backend.vocabulary

    def num(self, most: int) -> int:
        """How many of so many examples to play; at least one."""
        return max(1, round(most * self.effort))

    def engine(
        self,
        adapter: EngineAdapter,
        algorithm: SpecAlgorithm,
        *,
        mask_policy: MaskPolicyChoice = "eager",
        acceptance: AcceptMethod = "target_only",
        max_batch_size: int = MAX_BATCH_SIZE,
    ) -> Engine:
        """An engine that takes the same steps whatever the clock says."""
        config = Config(mask_policy=mask_policy, acceptance=acceptance, max_batch_size=max_batch_size)
        return Engine(
            adapter, self.backend, algorithm, config, agree=lambda _: "lazy", agree_joins=join_in_order
        )

    def alone(self, number: int) -> RequestOutput:
        """What a request comes to by itself, one token after the other, nothing late."""
        if number not in self._alone:
            with self.opened(InlineDevice()) as adapter:
                engine = self.engine(adapter, NoSpeculation(), max_batch_size=1)
                (self._alone[number],) = engine.generate([self.requests[number]])
        return self._alone[number]

    def refusal(self, make: MakeAlgorithm) -> str:
        """Why an algorithm cannot draft for this world's target, as it says itself; empty where it can."""
        try:
            with self.opened(InlineDevice()) as adapter:
                make().make_producer(context_of(adapter))
        except (ConfigError, ModelError, PluginError) as error:
            return str(error)
        return ""


def context_of(adapter: EngineAdapter, max_batch_size: int = MAX_BATCH_SIZE) -> ProducerContext:
    """What an engine gives to an algorithm."""
    return ProducerContext(
        adapter.vocabulary, max_batch_size, adapter.device, adapter.load_drafter, adapter.target
    )


@contextmanager
def _toy(device: Device) -> Iterator[EngineAdapter]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them only get in each other's way: all tensors are tiny
    try:
        yield LateAdapter(device, LateTarget(device), LateDrafter(device))
    finally:
        torch.set_num_threads(num_threads)
        if isinstance(device, CpuStream):
            device.close()


TOY_WORLD = World(
    backend=ReferenceBackend(VOCABULARY),
    requests=REQUESTS,
    tokens=(0, 1, 2, 3),
    opened=_toy,
    has_any_device=True,
    effort=1.0,
    show=texts_of,
    logits_behind=logits_behind,
)
"""The toy model, on any device."""


def adapter_world(
    adapter: EngineAdapter,
    backend: GrammarBackend,
    encode: Callable[[str], Sequence[int]],
    *,
    effort: float = 0.02,
) -> World:
    """A world around a loaded model, on the adapter's own device.

    Args:
        adapter: nobody else uses it meanwhile. Outputs are compared for equality, so its weights are float32:
            in bfloat16 near-ties fall differently with the shape of a batch.
        backend: over the adapter's vocabulary; the reference backend is too slow for a real one.
        encode: a prompt's ids (`adapter.encode_prompt`).
        effort: which share of the toy world's examples to play; a forward costs 40 to 100 ms on two cores.
    """
    reused = _Reused(adapter)
    prompts = [tuple(encode(text)) for text, *_ in _TEXTS]
    requests = tuple(
        Request(str(number), prompt, grammar, sampling, 10, stop_strings=stops, logprobs=number == 0)
        for number, (prompt, (_, grammar, sampling, stops)) in enumerate(zip(prompts, _TEXTS, strict=True))
    )
    vocabulary = adapter.vocabulary

    def show(tokens: Sequence[int]) -> str:
        return repr([vocabulary.tokens[t].decode(errors="replace") if t >= 0 else t for t in tokens])

    return World(
        backend=backend,
        requests=requests,
        tokens=prompts[0][-4:],
        opened=reused.opened,
        has_any_device=False,
        effort=effort,
        show=show,
        num_steps=5,
    )


_TEXTS: tuple[tuple[str, GrammarSpec | None, SamplingParams, tuple[str, ...]], ...] = (
    ("Name three colours.", GrammarSpec.regex("(red|green|blue)(, (red|green|blue)){2}"), SamplingParams(), ()),
    ("Count to ten.", None, SamplingParams(), ()),
    (
        "Describe a cat as JSON.",
        GrammarSpec.json_schema({"type": "object", "properties": {"name": {"type": "string"}}}),
        SamplingParams(temperature=0.8, seed=7),
        (),
    ),
    ("Say hello.", None, SamplingParams(temperature=1.0, top_p=0.9, seed=5), (".", "!")),
)


class _Reused:
    """An adapter that is opened again and again: each time nothing of the time before is there."""

    def __init__(self, adapter: EngineAdapter) -> None:
        self._adapter = adapter
        self._layers: tuple[int, ...] = ()
        self._drafters: dict[str, CausalDrafter] = {}
        self.device, self.vocabulary = adapter.device, adapter.vocabulary
        self.target: Any = self
        self._ids: set[str] = set()

    @contextmanager
    def opened(self, device: Device) -> Iterator[EngineAdapter]:  # noqa: ARG002  # it has its own
        """The adapter; what was started and is not over is removed behind."""
        try:
            yield self
        finally:
            for request_id in self._ids:
                self._adapter.target.remove(request_id)
                for drafter in self._drafters.values():
                    drafter.forget(request_id)
            self._ids.clear()

    def load_drafter(self, name: str) -> CausalDrafter:
        """Loaded once."""
        if name not in self._drafters:
            self._drafters[name] = self._adapter.load_drafter(name)
        return self._drafters[name]

    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        """The target's."""
        self._adapter.target.add(request_id, tokens)
        self._ids.add(request_id)

    def __getattr__(self, name: str) -> Any:
        """What else the target has: this is adapter and target in one."""
        member = getattr(self._adapter.target, name)
        return partial(self._watch, member) if name == "watch" else member

    def _watch(self, watch: Callable[[Sequence[int]], None], layers: Sequence[int]) -> None:
        """Once: a target is watched for good, and the next engine's head may watch the same layers."""
        if tuple(layers) != self._layers:
            watch(layers)
            self._layers = tuple(layers)
