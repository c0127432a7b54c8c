"""Checks of a whole worker: an algorithm inside an engine, under grammars, on streams, among other requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import Proposal, supports_grammar_overlap
from specgrammar.protocols.staging import Device
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.runtime.trace import Trace
from specgrammar.spec.sampling import MaskPolicyChoice, SamplingParams
from specgrammar.testing.checks.base import Checks, CheckSkipped, Story, expect, telling
from specgrammar.testing.checks.smallest import fewest, grow
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.failing import FailingForward, LostForwardError
from specgrammar.testing.late_target import LateTarget
from specgrammar.testing.law import law_of, surprise
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.runs import running, some
from specgrammar.testing.schedules import Choose, Schedule, check_alike, delays, told_request
from specgrammar.testing.world import TOY_WORLD, MakeAlgorithm, World

WORKER_CHECKS = Checks("worker")

_FEW = 12
_NUM_DRAWS = 2000
_FAR = 6.0


@WORKER_CHECKS.add(invariant=11)
def check_greedy_output_is_that_of_no_speculation(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """Greedy requests come to the same tokens, endings and logprobs as without drafts, token by token."""
    _check_alike(make, world, some(world, sampled=False))


@WORKER_CHECKS.add(invariant=11)
def check_sampled_output_is_that_of_no_speculation(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """With the same seed, sampled requests come to the same tokens as without drafts (`target_only`)."""
    _check_alike(make, world, some(world, sampled=True))


@WORKER_CHECKS.add(invariant=8)
def check_output_is_the_same_on_a_stream(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """Where forwards run beside the host, and steps behind unresolved ones, the tokens are the same."""
    _check_alike(make, world, some(world)[:_FEW], CpuStream)


@WORKER_CHECKS.add(invariant=11)
def check_mask_policies_change_nothing(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """Whether rows are masked before the target chooses or behind it, the tokens are the same."""
    policies: tuple[MaskPolicyChoice, ...] = ("lazy", "auto")
    for policy in policies:
        _check_alike(make, world, some(world)[:_FEW], policy=policy)


@WORKER_CHECKS.add(invariant=7)
def check_nothing_that_happens_changes_an_output(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """Requests join, are aborted, preempted and resumed, and results come late: the outputs are the same."""

    def play(choose: Choose, story: Story, size: float) -> None:
        policy: MaskPolicyChoice = ("eager", "lazy", "auto")[choose(3)]
        with running(make, world, delays(choose), policy) as run:
            target = run.adapter.target
            if isinstance(target, LateTarget):
                target.is_full = lambda: choose(40) == 39
            schedule = Schedule(
                run.engine,
                world.requests,
                world.alone,
                choose,
                most_requests=1 + round(3 * size),
                tell=story.tell,
                show=world.show,
            )
            schedule.run()
            schedule.check_outputs()

    grow(world.num(30), play)


@WORKER_CHECKS.add(invariant=4)
def check_outputs_are_legal(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """What is committed is legal under the request's grammar from its gate on, as the reference says."""
    reference = ReferenceBackend(world.vocabulary)

    def play(numbers: Sequence[int], story: Story) -> None:
        with running(make, world, InlineDevice()) as run:
            for number, output in run.outputs(numbers, story).items():
                _check_legal(reference, world, number, output)

    fewest(some(world, constrained=True), play)


@WORKER_CHECKS.add(invariant=11)
def check_rejection_keeps_the_law(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """Drafts that are said to be drawn may be verified by rejection: outputs keep the law of the target."""
    algorithm = make()
    if algorithm.proposal is not Proposal.SAMPLED:
        raise CheckSkipped("its proposal is POINT")
    if world.logits_behind is None:
        raise CheckSkipped("the law of this world's target is not known")
    for grammar in (None, GrammarSpec.regex("[abc12]*")):
        asked = Request("law", (0, 1, 0, 1), grammar, SamplingParams(temperature=1.5), max_new_tokens=3)
        law = law_of(asked, world.backend, world.logits_behind)
        story = Story([f"{_NUM_DRAWS} times {told_request(asked, world.show)}"])
        with telling(story), world.opened(InlineDevice()) as adapter:
            engine = world.engine(adapter, algorithm, acceptance="rejection", max_batch_size=_NUM_DRAWS // 4)
            requests = [
                replace(asked, request_id=str(seed), sampling=replace(asked.sampling, seed=seed))
                for seed in range(_NUM_DRAWS)
            ]
            counts = Counter(output.token_ids for output in engine.generate(requests))
            for output in counts:
                expect(output in law, f"{world.show(output)} came out, which has probability 0")
            distance = surprise(counts, law)
            worst = max(law, key=lambda output: abs(counts[output] - _NUM_DRAWS * law[output]))
            expect(
                distance < _FAR,
                f"with rejection sampling the outputs are {distance:.1f} standard deviations off the law: "
                f"{world.show(worst)} came {counts[worst]} times, expected {_NUM_DRAWS * law[worst]:.0f}; a "
                "SAMPLED node's token is drawn from the row of q that it names, and none is left out",
            )


@WORKER_CHECKS.add(invariant=9)
def check_a_failed_forward_fails_its_step_alone(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """Where a forward fails its step raises; the steps behind it go on, and every output is the same."""

    def play(choose: Choose, story: Story, size: float) -> None:
        device = delays(choose) if choose(2) else InlineDevice()
        numbers = [choose(len(world.requests)) for _ in range(1 + round(2 * size))]
        failing = FailingForward(2 + choose(4), bool(choose(2)))
        with running(make, world, device, wrap=failing.wrap) as run:
            for place, number in enumerate(numbers):
                request = replace(world.requests[number], request_id=str(place))
                story.tell(f"add {place}: {told_request(request, world.show)}")
                run.engine.add(request)
            outputs, num_failures = dict[str, RequestOutput](), 0
            while run.engine.has_work:
                try:
                    outputs |= {output.request_id: output for output in run.engine.step()}
                except LostForwardError:
                    num_failures += 1
                    story.tell("the step fails, as it was made to")
                    expect(num_failures < 4, "steps go on failing behind the forward that failed once")
            for place, number in enumerate(numbers):
                check_alike(outputs[str(place)], world.alone(number), world.show)

    grow(world.num(10), play)


@WORKER_CHECKS.add(invariant=9)
def check_a_failing_grammar_fails_its_request_alone(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """A request whose grammar does not compile, or leads nowhere, ends with its reason; the others go on."""
    story, numbers = Story(), some(world)[:4]
    bad = [GrammarSpec.regex("(")]
    if world.has_any_device:
        bad += map(GrammarSpec.regex, ("a(b|c)z", "a{3}z"))  # no token of the toy's spells z
    with telling(story), running(make, world, InlineDevice()) as run:
        prompt = world.requests[0].prompt_tokens
        for place, grammar in enumerate(bad):
            story.tell(f"add 'bad {place}': regex {grammar.source}")
            run.engine.add(Request(f"bad {place}", prompt, grammar, max_new_tokens=8))
        for number in numbers:
            run.engine.add(replace(world.requests[number], request_id=str(number)))
        outputs = {output.request_id: output for output in run.engine.generate([])}
    for place, grammar in enumerate(bad):
        found = outputs[f"bad {place}"]
        expect(
            found.finish_reason == "error" and found.error,
            f"the request with grammar {grammar.source} ends with {found.finish_reason!r}; expected an error",
        )
    for number in numbers:
        check_alike(outputs[str(number)], world.alone(number), world.show)


@WORKER_CHECKS.add(invariant=8)
def check_the_overlap_is_what_is_claimed(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """An algorithm that claims to overlap with grammars drafts behind steps that nobody has resolved."""
    if not supports_grammar_overlap(make()):
        raise CheckSkipped("supports_grammar_overlap() is not True")
    traces: list[Trace] = []

    def play(numbers: Sequence[int], story: Story) -> None:
        with running(make, world, DelayedDevice()) as run:
            if not run.adapter.device.runs_aside:
                raise CheckSkipped("this world's device does everything at once; open it on a stream")
            if getattr(run.adapter.target, "supports_unresolved", False) is not True:
                raise CheckSkipped("this world's target takes no unresolved step")
            traces.append(run.engine.trace)
            run.check(numbers, story)

    fewest(some(world, constrained=True)[:_FEW], play)
    num_steps, num_overlapped = traces[0].num_steps, traces[0].num_overlapped_steps
    expect(
        num_overlapped > 0,
        f"supports_grammar_overlap() is True, but none of {num_steps} steps was launched behind one that "
        "is not resolved",
    )


@WORKER_CHECKS.add(invariant=13)
def check_clocks_change_nothing(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """Replicas whose devices are done early and late draft trees of the same sizes in each step."""
    if not world.has_any_device:
        raise CheckSkipped("this world's device has a clock of its own")

    def play(numbers: Sequence[int], story: Story) -> None:
        shapes: list[list[tuple[int, ...]]] = []
        for schedule in (lambda _: 0, lambda num_pending: num_pending):
            story.clear()
            with running(make, world, DelayedDevice(schedule)) as run:
                run.outputs(numbers, story)
                shapes.append(run.watched.shapes)
        for step, (late, early) in enumerate(zip(*shapes, strict=False)):
            expect(
                late == early,
                f"step {step}: the trees end at {late} where nothing is done before somebody waits for it, and "
                f"at {early} where all is done at once",
            )

    fewest(some(world)[:_FEW], play)


def _check_alike(
    make: MakeAlgorithm,
    world: World,
    numbers: Sequence[int],
    device: Callable[[], Device] = InlineDevice,
    policy: MaskPolicyChoice = "eager",
) -> None:
    """Requests together come to what they come to alone."""

    def play(numbers: Sequence[int], story: Story) -> None:
        if policy != "eager":
            story.tell(f"mask policy {policy}")
        with running(make, world, device(), policy) as run:
            run.check(numbers, story)

    fewest(numbers, play)


def _check_legal(reference: ReferenceBackend, world: World, number: int, output: RequestOutput) -> None:
    """The tokens behind the request's marker are legal, one after the other."""
    request = world.requests[number]
    assert request.grammar is not None
    assert isinstance(request.grammar_start, tuple)
    tokens = _behind(request.grammar_start, output.token_ids)
    if tokens is None:
        return
    matcher = reference.matcher(reference.compile(request.grammar))
    if set(tokens[-1:]) & set(request.stop_token_ids) - set(world.vocabulary.stop_ids):
        tokens = tokens[:-1]  # the request's own stop id ends it, whatever the grammar says of it
    count = matcher.accept_prefix(tokens)
    expect(
        count == len(tokens),
        f"request {number} has committed {world.show(output.token_ids)}; its grammar "
        f"{request.grammar.source} takes {world.show(tokens[:count])} and not the next token",
    )


def _behind(marker: Sequence[int], tokens: Sequence[int]) -> list[int] | None:
    """The tokens behind the first marker; None where it never comes."""
    for end in range(len(marker), len(tokens) + 1):
        if tuple(tokens[end - len(marker) : end]) == tuple(marker):
            return list(tokens[end:])
    return None
