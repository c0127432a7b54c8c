"""Lazy masking commits what eager masking commits, and asks the grammar about little else."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.config import Config
from specgrammar.errors import ConfigError
from specgrammar.native.library import why_no_core
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.runtime import lazy_walk
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.lazy_walk import LazyWalk
from specgrammar.runtime.masking import LaunchedStep, Verified
from specgrammar.runtime.policy import AutoMasking
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.toy_target import Ready, ToyAdapter, ToyTarget, toy_engine
from specgrammar.testing.toys import GRAMMARS, STOP, TEXTS
from specgrammar.trees.tree import DraftTree
from tests.toys import BACKEND_NAMES, legal_ids, matcher

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=2.5),
    SamplingParams(temperature=1.0, top_k=2),
    SamplingParams(temperature=1.3, top_p=0.7),
    SamplingParams(temperature=1.0, min_p=0.2),
)
ENDLESS = GrammarSpec.regex("([abc12]|: |, )*")
DEAD_END = GrammarSpec.regex("a(b|c)z")  # no token spells the z


@st.composite
def request_lists(draw: st.DrawFn) -> list[Request]:
    """One to five requests of every kind that a batch may hold."""
    made = []
    for number in range(draw(st.integers(1, 5))):
        grammar = draw(st.sampled_from([*GRAMMARS, ENDLESS, DEAD_END, None]))
        made.append(
            Request(
                str(number),
                tuple(draw(st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=12))),
                grammar,
                replace(draw(st.sampled_from(SAMPLINGS)), seed=draw(st.integers(0, 2**20))),
                draw(st.integers(1, 24)),
                draw(st.sampled_from([(), ("bc",), ("12",)])),
                grammar_start=(0, 1) if grammar is not None and draw(st.integers(0, 3)) == 0 else (),
                logprobs=draw(st.booleans()),
            )
        )
    return made


def test_a_cut_path_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the second draw ends the walk, `auto` learns what that costs."""
    monkeypatch.setattr(lazy_walk, "NUM_BEST", 1)
    cut: list[int] = []
    for device in (InlineDevice(), DelayedDevice()):
        engine = Engine.build(Config(mask_policy="lazy", algorithm="ngram"), ToyAdapter(device=device))
        policy = engine._parts.masking
        verify = policy.verify
        num_cut = 0

        def counting(step: LaunchedStep, verify: Any = verify) -> Verified:
            nonlocal num_cut
            verified: Verified = verify(step)
            num_cut += verified.num_cut
            return verified

        engine._parts = replace(engine._parts, masking=SimpleNamespace(verify=counting))
        list(engine.generate([Request("1", (2,), GrammarSpec.regex("(ab){20}"), max_new_tokens=60)]))
        cut.append(num_cut)
    assert cut[0] == 0
    assert cut[1] > 0


def test_what_native_code_refuses_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fills the row for the second draw itself, and it alone moves grammars."""
    if why := why_no_core():
        pytest.skip(why)

    def tried_again(*arguments: object) -> int:
        raise AssertionError(f"Python walks where native code did: {arguments}")

    monkeypatch.setattr(lazy_walk, "NUM_BEST", 2)
    monkeypatch.setattr(LazyWalk, "_walk", tried_again)
    for device in (InlineDevice(), DelayedDevice()):
        engine = Engine.build(Config(mask_policy="lazy", algorithm="ngram"), ToyAdapter(device=device))
        requests = [Request(str(i), (i,), GrammarSpec.regex("(ab){20}"), max_new_tokens=60) for i in range(8)]
        assert all(output.error is None for output in engine.generate(requests))
        assert engine.trace.num_mask_rows > 0


def outputs_of(engine: Engine, requests: list[Request]) -> dict[str, RequestOutput]:
    """All outputs by id."""
    return {output.request_id: output for output in engine.generate(requests)}


def assert_same(ours: dict[str, RequestOutput], eager: dict[str, RequestOutput]) -> None:
    """The same ids, ends and log-probabilities; steps may differ, and with them where a dead end is found."""
    assert ours.keys() == eager.keys()
    for request_id, theirs in eager.items():
        mine = ours[request_id]
        assert (mine.token_ids, mine.text, mine.finish_reason) == (
            theirs.token_ids,
            theirs.text,
            theirs.finish_reason,
        )
        assert (mine.error is None) == (theirs.error is None)
        assert (mine.logprobs is None) == (theirs.logprobs is None)
        if mine.logprobs is not None and theirs.logprobs is not None:
            np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-5)


@pytest.mark.parametrize("backend", BACKEND_NAMES)
@pytest.mark.parametrize("algorithm", ["none", "ngram"])
@pytest.mark.parametrize("policy", ["lazy", "auto"])
@given(requests=request_lists())
@settings(max_examples=40, deadline=None)
def test_the_tokens_of_eager_masking(
    backend: str, algorithm: str, policy: str, requests: list[Request]
) -> None:
    """Greedy, drawn and truncated requests in one batch, with gates, stop strings, dead ends and logprobs.

    On the CPU no path is cut, so that the steps are the same, too; of one request, since when others join
    depends on their compilation, and drafts on what others wrote.
    """
    config: dict[str, Any] = {"backend": backend, "algorithm": algorithm, "max_batch_size": 3}
    eager, _ = toy_engine(mask_policy="eager", **config)
    other, _ = toy_engine(mask_policy=policy, **config)
    theirs, ours = outputs_of(eager, requests), outputs_of(other, requests)
    assert_same(ours, theirs)
    if len(requests) == 1:
        assert ours["0"].num_verify_steps == theirs["0"].num_verify_steps


@pytest.mark.parametrize("num_best", [1, 3, 32])
@pytest.mark.parametrize("algorithm", ["none", "ngram"])
@given(requests=request_lists())
@settings(max_examples=30, deadline=None)
def test_the_tokens_of_eager_masking_on_a_device(
    algorithm: str, num_best: int, requests: list[Request]
) -> None:
    """On a stream whose work runs only when somebody waits: second draws see masked rows, one trip a step.

    With few of each row's best tokens that is often needed, with 32 the toy's whole vocabulary is there.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy_walk, "NUM_BEST", num_best)
        _compare_on_a_device(algorithm, requests)


def _compare_on_a_device(algorithm: str, requests: list[Request]) -> None:
    config = Config(mask_policy="lazy", algorithm=algorithm, max_batch_size=3)
    eager, _ = toy_engine(mask_policy="eager", algorithm=algorithm, max_batch_size=3)
    lagging = Engine.build(config, ToyAdapter(device=DelayedDevice()))
    assert_same(outputs_of(lagging, requests), outputs_of(eager, requests))
    if not any(request.logprobs or request.sampling.truncates for request in requests):
        # Of both runs: one row per request and step, and one per request that failed in a step without result.
        ended = outputs_of(lagging, requests).values()
        num_rows = sum(entry.num_verify_steps + (entry.error is not None) for entry in ended)
        assert lagging.trace.num_mask_rows <= 2 * num_rows


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_the_matcher_stands_behind_what_was_committed(backend: str) -> None:
    """Also where a limit or a stop string cuts what the walk had accepted."""
    engine, _ = toy_engine(mask_policy="lazy", backend=backend, algorithm="ngram")
    for number in range(24):
        sampling = SamplingParams(temperature=1.0, seed=number)
        stops = ("12",) if number % 2 else ()
        engine.add(Request(str(number), (0, 1, 2, 0, 1), ENDLESS, sampling, 3 + number % 5, stops))
    seen = 0
    entries = engine._parts.ledger.entries
    while engine.has_work:
        sessions = [entry.session for entry in entries.values()]
        engine.step()
        engine._parts.ledger.advance_pending()
        for session in sessions:
            if session.error is None and session.output and session.output[-1] != STOP:
                fresh = matcher(backend, ENDLESS)
                assert fresh.accept_prefix(session.output) == len(session.output)
                assert session.cursor is not None
                assert legal_ids(session.cursor.matcher) == legal_ids(fresh)
                seen += 1
    assert seen > 30


def test_only_refused_choices_have_rows() -> None:
    """A target that knows the format costs no row at all, an ignorant one at most one per token."""

    class Knowing(ToyTarget):
        """Prefers what `(ab)+c` allows."""

        def verify(self, batch: DecodeBatch, tree: DraftTree) -> Ready:
            logits = super().verify(batch, tree).logits
            assert tree.host is not None
            for node, token in enumerate(tree.host.draft_tokens.tolist()):
                logits[node, TEXTS.index(b"b") if TEXTS[token] == b"a" else TEXTS.index(b"a")] = 100.0
            return Ready(logits)

    config = Config(mask_policy="lazy", algorithm="ngram")
    knowing = Engine.build(config, ToyAdapter(Knowing()))
    request = Request("1", (2,), GrammarSpec.regex("(ab)*"), max_new_tokens=40)
    (output,) = knowing.generate([request])
    assert output.text == "ab" * 20
    assert knowing.trace.num_mask_rows == 0
    apart = Engine.build(config, ToyAdapter(Knowing(), device=DelayedDevice()))
    assert [output.text for output in apart.generate([request])] == ["ab" * 20]
    assert "resample" not in apart.trace.seconds, "nothing is brought to a device for nothing"
    assert output.num_verify_steps < 40  # drafts were accepted

    ignorant, _ = toy_engine(mask_policy="lazy", algorithm="ngram")
    (output,) = ignorant.generate([replace(request, grammar=GrammarSpec.regex("(ab){20}"))])
    assert 0 < ignorant.trace.num_mask_rows <= len(output.token_ids)


def test_a_bad_logit_behind_the_mask_is_no_harm() -> None:
    """NaN and +inf at illegal tokens: eager masking never sees them, so lazy masking may not either."""

    class Broken(ToyTarget):
        def verify(self, batch: DecodeBatch, tree: DraftTree) -> Ready:
            logits = super().verify(batch, tree).logits
            logits[:, TEXTS.index(b"{")] = torch.nan
            logits[:, TEXTS.index(b"}")] = torch.inf
            return Ready(logits)

    requests = [
        Request(str(n), (0, 1), GRAMMARS[n % 4], SamplingParams(temperature=n % 3, seed=n), 16)
        for n in range(12)
    ]
    found = [
        outputs_of(Engine.build(Config(mask_policy=policy), ToyAdapter(Broken())), requests)
        for policy in ("eager", "lazy")
    ]
    assert_same(found[1], found[0])
    assert all(output.error is None for output in found[0].values())


def test_auto_decides_once_and_as_all_replicas_do() -> None:
    """Two replicas, one of which is told the other's choices: the same policy from then on, for each size."""
    asked: list[str] = []

    def remember(choice: str) -> Any:
        asked.append(choice)
        return choice

    def obey(_: str) -> Any:
        return asked[0]

    requests = [Request(str(n), (0, 1, 0, 1), ENDLESS, max_new_tokens=80) for n in range(2)]
    backend, algorithm = _parts()
    first = Engine(ToyAdapter(), backend, algorithm, Config(max_batch_size=2), agree=remember)
    outputs_of(first, requests)
    second = Engine(ToyAdapter(), backend, algorithm, Config(max_batch_size=2), agree=obey)
    outputs_of(second, requests)
    policies = [engine._parts.masking for engine in (first, second)]
    assert all(isinstance(policy, AutoMasking) for policy in policies)
    chosen = [
        {size: trials.chosen for size, trials in policy.trials.items()}
        for policy in policies
        if isinstance(policy, AutoMasking)
    ]
    assert chosen[0][2] == chosen[1][2] == asked[0]
    assert len(asked) == sum(choice is not None for choice in chosen[0].values())
    assert f"{asked[0]} below 4 nodes (eager " in first.masking


def _parts() -> tuple[Any, Any]:
    from specgrammar.registry import ALGORITHMS, create
    from tests.toys import backend

    return backend("xgrammar"), create(ALGORITHMS, "none")


def test_where_lazy_masking_cannot_be() -> None:
    """It is refused when it is asked for, and `auto` does without."""
    target = ToyTarget(supports_resample=False)
    with pytest.raises(ConfigError, match="mask_policy 'lazy': the target does not say supports_resample"):
        Engine.build(Config(mask_policy="lazy"), ToyAdapter(target))
    masking = Engine.build(Config(mask_policy="auto"), ToyAdapter(target)).masking
    assert masking.startswith("eager: the target does not say supports_resample")
    with pytest.raises(ConfigError, match="mask_policy"):
        Config(mask_policy="sometimes")  # type: ignore[arg-type]


def test_a_row_from_which_nothing_may_be_drawn_counts_once() -> None:
    """Native code that reads the logits leaves it to Python, which makes the error of it."""
    engine, _ = toy_engine(mask_policy="lazy", algorithm="none")
    (output,) = engine.generate([Request("1", (2,), DEAD_END, max_new_tokens=4)])
    assert (output.finish_reason, len(output.token_ids)) == ("error", 2)
    assert engine.trace.num_mask_rows == 2, "one was refused on the way, and one at the end"
