"""Requests whose grammar begins somewhere, through the whole engine: the tokens are those of the definition.

Every algorithm, both backends, every mask policy, on devices where all is done at once, beside the host, or
late; with requests that are added, aborted, preempted and resumed meanwhile (`testing.schedules`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
import torch

from specgrammar.config import Config
from specgrammar.grammar.gate import Marker, Markers
from specgrammar.grammar.stops import FinishReason
from specgrammar.protocols.gate import GrammarGate
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import SpecAlgorithm
from specgrammar.protocols.staging import Device
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.spec.chain import ChainAlgorithm
from specgrammar.spec.forced import ForcedAlgorithm
from specgrammar.spec.ngram import NgramAlgorithm
from specgrammar.spec.none import NoSpeculation
from specgrammar.spec.sampler import sample_tokens
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.late_drafter import LateDrafter
from specgrammar.testing.late_target import LateAdapter, LateTarget
from specgrammar.testing.schedules import Schedule, Seeded, delays
from specgrammar.testing.toy_target import join_in_order, toy_logits
from specgrammar.testing.toys import STOP, TEXTS, VOCABULARY
from tests.gate.detectors import BlockGate, SpelledGate, TextGate, begin_of
from tests.gate.plain import allowed_behind
from tests.spec.toy_eagle import toy_eagle
from tests.toys import BACKEND_NAMES, backend

ALGORITHMS: dict[str, Callable[[], SpecAlgorithm]] = {
    "none": NoSpeculation,
    "ngram": lambda: NgramAlgorithm(min_match=1),
    "chain": lambda: ChainAlgorithm(min_match=1),
    "chain, draft model": lambda: ChainAlgorithm(drafter="toy", num_draft_tokens=4),
    "forced": ForcedAlgorithm,
    "eagle": lambda: toy_eagle(topk=3, num_steps=3, num_draft_tokens=9),
    "eagle, chain": lambda: toy_eagle(topk=1, num_steps=4, num_draft_tokens=5),
}
POLICIES = ("eager", "lazy", "auto")
NUM_REQUESTS = 96
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(),
    SamplingParams(temperature=0.9, seed=3),
    SamplingParams(temperature=1.2, top_k=4, seed=5),
)


def plain(request: Request) -> RequestOutput:
    """Token by token: what the grammar allows of the whole output, masked; a draw; what ends a request."""
    spec, start, prompt = request.grammar, request.grammar_start, request.prompt_tokens
    output: list[int] = []
    reason: FinishReason | None = None
    while reason is None:
        logits = toy_logits([*prompt, *output])[: VOCABULARY.vocab_size].clone()
        allowed = None if spec is None else allowed_behind(spec, start, prompt, output)
        if allowed is not None:
            logits[[i for i in range(VOCABULARY.vocab_size) if i not in allowed]] = -torch.inf
            if not allowed:  # a text that this vocabulary cannot spell
                reason = "error"
                break
        position = np.array([len(prompt) + len(output)])
        output.append(int(sample_tokens(logits[None], [request.sampling], position)))
        text = VOCABULARY.text(output)
        if output[-1] == STOP or output[-1] in request.stop_token_ids:
            reason = "stop"
        elif any(string.encode() in text for string in request.stop_strings):
            reason = "stop_string"
        elif len(output) == request.max_new_tokens:
            reason = "length"
    shown = VOCABULARY.text(output[:-1] if reason == "stop" else output).decode()
    cuts = [shown.find(string) for string in request.stop_strings if string in shown]
    engaged = None if spec is None else begin_of(start, prompt, output) is not None
    return RequestOutput(
        request.request_id,
        shown[: min(cuts, default=len(shown))],
        tuple(output),
        reason,
        grammar_engaged=engaged,
    )


def escaped(text: bytes) -> str:
    return "".join(f"\\{c}" if c in "{}" else c for c in text.decode())


def start_for(
    prompt: Marker, free: Sequence[int], random: Random, number: int
) -> tuple[tuple[int, ...] | GrammarGate, str]:
    """A start out of what a request writes by itself, and what a grammar has to begin with for it."""
    texts = [i for i, token in enumerate(free) if token < len(TEXTS)]
    begin = random.choice(texts or [0])
    marker: Marker = tuple(free[begin : begin + random.choice((1, 1, 2, 3))])
    while any(token >= len(TEXTS) for token in marker):
        marker = marker[:-1]
    marker = marker or (0,)
    text = VOCABULARY.text(marker)
    kinds: list[tuple[tuple[int, ...] | GrammarGate, str]] = [
        (marker, ""),
        (Markers(after=(marker, (17, 17))), ""),
        (Markers(at=(marker,)), escaped(text)),
        (Markers(at=(marker,), after=((17, 17),)), escaped(text)),
        (TextGate(text), ""),
        (SpelledGate(text[:3]), escaped(text[:3])),
        (BlockGate(begin=prompt[-1], end=marker[0] if marker[0] != prompt[-1] else 17), ""),
        (Markers(after=(marker,), in_prompt=True), ""),
    ]
    return kinds[number % len(kinds)]


def _request(number: int) -> Request:
    random = Random(number)
    prompt = tuple(random.randrange(16) for _ in range(1 + number % 5))
    request = Request(str(number), prompt, None, random.choice(SAMPLINGS), 24)
    start, first = start_for(prompt, plain(request).token_ids[:10], random, number)
    rest = random.choice(("([abc12]|: |, )*", "(ab|c){2,9}", "[ab]{3}(1|2)?", '(\\{"a":[12]+\\}(, )?)*'))
    return replace(
        request,
        grammar=GrammarSpec.regex(first + rest),
        grammar_start=start,
        max_new_tokens=random.choice((3, 12, 24)),
        stop_strings=random.choice(((), (), (), ("c1",), ("2", "}"))),
        stop_token_ids=random.choice(((), (), (18,))),
    )


@cache
def pool() -> tuple[Request, ...]:
    """Requests of every kind of start."""
    return tuple(map(_request, range(NUM_REQUESTS)))


@cache
def expected(number: int) -> RequestOutput:
    return plain(pool()[number])


def test_the_pool_is_what_it_should_be() -> None:
    """Most grammars begin, of every kind of gate and somewhere inside; some never do, and stop before."""
    begun, reasons = Counter[str](), Counter[str]()
    for number, request in enumerate(pool()):
        output = expected(number)
        begin = begin_of(request.grammar_start, request.prompt_tokens, output.token_ids)
        kind = type(request.grammar_start).__name__
        kind += " at" if isinstance(request.grammar_start, Markers) and request.grammar_start.at else ""
        begun[kind if begin is not None and begin < len(output.token_ids) - 1 else "never"] += 1
        reasons[f"{output.finish_reason}, {output.grammar_engaged}"] += 1
    assert set(begun) == {"tuple", "Markers", "Markers at", "TextGate", "SpelledGate", "BlockGate", "never"}, (
        begun
    )
    assert min(begun.values()) >= 2, begun
    assert {"stop, False", "stop_string, False", "length, False", "stop, True", "length, True"} <= set(reasons)


DEVICES: dict[str, Callable[[Seeded], Device]] = {
    "inline": lambda _: InlineDevice(),
    "cpu-stream": lambda _: CpuStream(),
    "late": delays,
}


def engine_of(algorithm: str, name: str, policy: str, device: Device, choose: Seeded) -> Engine:
    config = Config.from_dict({"backend": name, "mask_policy": policy, "max_batch_size": 1 + choose(4)})
    adapter = LateAdapter(device, LateTarget(device), LateDrafter(device))
    return Engine(
        adapter,
        backend(name),
        ALGORITHMS[algorithm](),
        config,
        agree=lambda _: ("eager", "lazy")[choose(2)],  # not what the clock says
        agree_joins=join_in_order,
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_algorithm_backend_policy_and_device_gives_the_plain_tokens(
    algorithm: str, policy: str, device: str
) -> None:
    """Whatever joins, leaves and comes back meanwhile; requests whose grammar never began are counted."""
    for name in BACKEND_NAMES:
        for seed in range(2):
            choose = Seeded(hash_of(algorithm, policy, device, name, str(seed)))
            engine = engine_of(algorithm, name, policy, DEVICES[device](choose), choose)
            played = Schedule(engine, pool(), expected, choose, most_requests=6)
            played.run()
            played.check_outputs()
            never = sum(output.grammar_engaged is False for output in played.outputs.values())
            assert engine.trace.num_never_engaged == never


def hash_of(*parts: str) -> int:
    """The same in every process."""
    return int.from_bytes("/".join(parts).encode()) % 1_000_003


@pytest.mark.parametrize("name", BACKEND_NAMES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_requests_at_once(algorithm: str, name: str) -> None:
    """Each one's tokens, text, end and whether its grammar began; a never-beginning one is counted once."""
    choose = Seeded(1)
    engine = engine_of(algorithm, name, "auto", InlineDevice(), choose)
    outputs = {output.request_id: output for output in engine.generate(pool())}
    for number in range(NUM_REQUESTS):
        found, right = outputs[str(number)], expected(number)
        assert (found.token_ids, found.text) == (right.token_ids, right.text)
        assert (found.finish_reason, found.grammar_engaged) == (right.finish_reason, right.grammar_engaged)
    assert (
        engine.trace.num_never_engaged == sum(not expected(i).grammar_engaged for i in range(NUM_REQUESTS)) > 4
    )
