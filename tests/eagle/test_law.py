"""`eagle` samples from the law of masked ordinary decoding: on a toy model, and on the real one with its head.

The outputs of many requests, which differ in their seed alone, are compared with the exact law: every token
path of the grammar, its mask applied and renormalised at each step. All draws are keyed, so a result never
changes from run to run. Variants have seeds of their own, since with the same seeds they have the same tokens,
which is tested too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specgrammar.config import Config
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import SpecAlgorithm
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request
from specgrammar.spec.eagle.algorithm import EagleAlgorithm
from specgrammar.spec.noise import Stream, noise_keys, uniform
from specgrammar.spec.none import NoSpeculation
from specgrammar.spec.sampler import truncate_probs
from specgrammar.spec.sampling import SamplingParams
from specgrammar.spec.walk import Walk
from specgrammar.testing.late_target import LateAdapter, LateTarget, logits_behind
from specgrammar.testing.law import Output, law_of, surprise
from specgrammar.testing.toy_target import join_in_order
from specgrammar.testing.toys import VOCABULARY
from specgrammar_transformers import TransformersAdapter, fetch_default_model, load_model
from specgrammar_xgrammar import XGrammarBackend
from tests.spec.remembered import Contexts, RememberedAdapter, RememberedTarget
from tests.spec.toy_eagle import toy_eagle

LEVEL = 4.75
"""Standard deviations; a right law is further off once in a million tests."""

SHAPES = {
    "tree": {"topk": 4, "num_steps": 3, "num_draft_tokens": 10},
    "chain": {"topk": 1, "num_steps": 3, "num_draft_tokens": 4},
}
VARIANTS = [(shape, grammar_aware) for shape in SHAPES for grammar_aware in (False, True)]
every_variant = pytest.mark.parametrize(("shape", "grammar_aware"), VARIANTS)


def seeds_of(shape: str, grammar_aware: bool, num: int) -> range:
    """Seeds that only this variant has."""
    begin = 1_000_000 * VARIANTS.index((shape, grammar_aware))
    return range(begin, begin + num)


def counted(engine: Engine, request: Request, seeds: range) -> Counter[Output]:
    """The outputs of requests that differ in their seed alone."""
    params = [replace(request.sampling, seed=seed) for seed in seeds]
    requests = [replace(request, request_id=str(one.seed), sampling=one) for one in params]
    return Counter(output.token_ids for output in engine.generate(requests))


def off(counts: Counter[Output], law: dict[Output, float]) -> float:
    """`surprise`, and infinite where an output is impossible."""
    return surprise(counts, law) if set(counts) <= set(law) else float("inf")


def keep_drafts_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a fault: the first child is kept with its probability, else the target draws, from the same p."""
    right = Walk.draw

    def draw(
        self: Walk, walking: NDArray[np.int64], here: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        token, child, table = right(self, walking, here, positions), self.first_child[here], self.table
        rows = truncate_probs(self.logits[torch.from_numpy(here)], table.take(walking))
        draft = np.where((child >= 0) & self.may_be_accepted[child], self.token_of_node[child], -1)
        p = rows.numpy()[np.arange(len(here)), draft]
        chance = uniform(noise_keys(table.seed[walking], positions, Stream.ACCEPT))
        return np.where((draft >= 0) & (chance < p), draft, token)

    monkeypatch.setattr(Walk, "draw", draw)


# -- the toy model -------------------------------------------------------------------------------------------

TOY_NUM = 2_000
# The grammar chooses, and the target spells in any of four tokens (a, b, ab, abc).
TOY = Request("law", (12, 3), GrammarSpec.regex("(ab|c){2}(c|1|2)*"), SamplingParams(), 3)
TOY_LAWS = [SamplingParams(4.0), SamplingParams(6.0, top_k=3, top_p=0.9)]


def toy_engine(shape: str, grammar_aware: bool) -> Engine:
    device = InlineDevice()
    return Engine(
        LateAdapter(device, LateTarget(device)),
        XGrammarBackend(VOCABULARY),
        toy_eagle(**SHAPES[shape], grammar_aware=grammar_aware),
        Config(max_batch_size=50, mask_policy="eager"),
        agree_joins=join_in_order,
    )


@pytest.mark.parametrize("params", TOY_LAWS, ids=str)
@every_variant
def test_invariant_11_a_toy_has_the_law_of_ordinary_decoding(
    shape: str, grammar_aware: bool, params: SamplingParams
) -> None:
    request, engine = replace(TOY, sampling=params), toy_engine(shape, grammar_aware)
    counts = counted(engine, request, seeds_of(shape, grammar_aware, TOY_NUM))
    law = law_of(request, XGrammarBackend(VOCABULARY), logits_behind)
    assert len(counts) > 5
    assert engine.trace.num_accepted > TOY_NUM / 20
    assert off(counts, law) < LEVEL


def test_a_toy_shows_drafts_that_are_kept_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_drafts_too_often(monkeypatch)
    request = replace(TOY, sampling=TOY_LAWS[0])
    counts = counted(toy_engine("tree", True), request, seeds_of("tree", True, TOY_NUM))
    assert off(counts, law_of(request, XGrammarBackend(VOCABULARY), logits_behind)) > LEVEL


# -- the real model, and the head that is shipped ------------------------------------------------------------

REAL_NUM = 700
WORDS = GrammarSpec.regex(" (is|was|has|had|who|in)")
REAL_LAWS = [SamplingParams(1.2), SamplingParams(1.5, top_p=0.9)]


def shipped(shape: str, grammar_aware: bool) -> EagleAlgorithm:
    options: dict[str, Any] = {**SHAPES[shape], "grammar_aware": grammar_aware}
    return EagleAlgorithm(**options)


class Real:
    """The default model in float32, loaded once."""

    def __init__(self) -> None:
        self.model: PreTrainedModel
        self.tokenizer: PreTrainedTokenizerBase
        self.model, self.tokenizer = load_model(fetch_default_model(), "cpu", "float32")
        self.adapter: TransformersAdapter = self.with_a_cache()
        self.backend = XGrammarBackend(self.adapter.vocabulary)
        self.contexts = Contexts(self.model)

    def with_a_cache(self) -> TransformersAdapter:
        """As it is used."""
        return TransformersAdapter(self.model, self.tokenizer, 4)

    def request(self, params: SamplingParams) -> Request:
        """One of six words, which have 40 spellings."""
        return Request("law", tuple(self.adapter.encode_raw("The old man who")), WORDS, params, 6)

    def law(self, params: SamplingParams) -> dict[Output, float]:
        """Of that request."""
        return law_of(self.request(params), self.backend, self.contexts.logits)

    def counts(self, shape: str, grammar_aware: bool, params: SamplingParams) -> Counter[Output]:
        """What the head's drafts come to."""
        engine = Engine(
            RememberedAdapter(RememberedTarget(self.contexts), self.adapter.vocabulary),
            self.backend,
            shipped(shape, grammar_aware),
            Config(max_batch_size=32, mask_policy="eager"),
            agree_joins=join_in_order,
        )
        counts = counted(engine, self.request(params), seeds_of(shape, grammar_aware, REAL_NUM))
        assert engine.trace.num_accepted > REAL_NUM / 20
        return counts


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    """One thread: two are slower where others work, too."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Real()
    torch.set_num_threads(num_threads)


@pytest.mark.model
@pytest.mark.parametrize("params", REAL_LAWS, ids=str)
@every_variant
def test_invariant_11_the_real_model_has_the_law_of_ordinary_decoding(
    real: Real, shape: str, grammar_aware: bool, params: SamplingParams
) -> None:
    assert off(real.counts(shape, grammar_aware, params), real.law(params)) < LEVEL


@pytest.mark.model
def test_the_real_model_shows_drafts_that_are_kept_too_often(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_drafts_too_often(monkeypatch)
    assert off(real.counts("tree", True, REAL_LAWS[0]), real.law(REAL_LAWS[0])) > LEVEL


@pytest.mark.model
def test_the_real_model_shows_a_law_that_is_not_renormalised_at_each_step(real: Real) -> None:
    """Which is that of drawing unmasked outputs until one is in the grammar."""
    params = REAL_LAWS[0]
    request, unmasked = real.request(params), {}
    for output in real.law(params):
        mass = 1.0
        for place, token in enumerate(output):
            logits = real.contexts.logits([*request.prompt_tokens, *output[:place]])
            mass *= float(truncate_probs(logits[None], [params])[0, token])
        unmasked[output] = mass
    wrong = {output: mass / sum(unmasked.values()) for output, mass in unmasked.items()}
    assert off(real.counts("tree", True, params), wrong) > LEVEL


@pytest.mark.model
def test_invariant_11_the_real_model_has_the_tokens_of_ordinary_decoding(real: Real) -> None:
    """With its own cache, greedy and sampled, one by one: the noise is the seed's, whatever is drafted."""
    person = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    sampling = [SamplingParams(), SamplingParams(1.0, seed=1), SamplingParams(0.8, top_p=0.9, seed=2)]
    grammars = [GrammarSpec.json_schema(person)] * 3 + [None]
    prompt = tuple(real.adapter.encode_prompt("Describe a person as JSON."))
    requests = [
        Request(str(n), prompt, grammar, one, 12)
        for n, (grammar, one) in enumerate(zip(grammars, [*sampling, sampling[1]], strict=True))
    ]

    def told(algorithm: SpecAlgorithm) -> tuple[dict[str, object], Engine]:
        config = Config(max_batch_size=4, mask_policy="eager")
        engine = Engine(real.with_a_cache(), real.backend, algorithm, config, agree_joins=join_in_order)
        outputs = engine.generate(requests)
        return {one.request_id: (one.token_ids, one.finish_reason) for one in outputs}, engine

    right, _ = told(NoSpeculation())
    assert len({str(output) for output in right.values()}) == len(requests)
    for shape, grammar_aware in VARIANTS:
        found, engine = told(shipped(shape, grammar_aware))
        assert found == right, (shape, grammar_aware)
        assert engine.trace.num_accepted > 3
