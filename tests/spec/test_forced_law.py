"""Drafts of several tokenisations of one forced text leave the law as it is.

The grammar forces ababab and then leaves a choice; the target spells it in any of four tokens (a, b, ab, abc),
as its logits like. The outputs of many requests, which differ in their seed alone, are compared with the exact
law of ordinary masked decoding at `LEVEL`; all draws are keyed, so the result never changes from run to run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from scipy import stats

from specgrammar.config import Config
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.toy_target import ToyAdapter, join_in_order, toy_logits
from specgrammar.testing.toys import STOP, VOCABULARY
from tests.spec.reference_law import reference_probs
from tests.toys import legal_ids, matcher

NUM, LENGTH, LEVEL = 3_000, 3, 1e-6
SPEC = GrammarSpec.regex("(ab){3}(c|1|2)*")
PROMPT = (12, 13)
LAWS = [SamplingParams(4.0), SamplingParams(6.0, top_k=3), SamplingParams(5.0, top_p=0.8)]


def law(params: SamplingParams) -> dict[tuple[int, ...], float]:
    """The probability of each output of at most `LENGTH` tokens."""

    def extend(output: tuple[int, ...], mass: float) -> dict[tuple[int, ...], float]:
        if len(output) == LENGTH or (output and output[-1] == STOP):
            return {output: mass}
        one = matcher("xgrammar", SPEC)
        assert one.accept_prefix(output) == len(output)
        legal = set(legal_ids(one))
        logits = toy_logits([*PROMPT, *output])[: VOCABULARY.vocab_size].tolist()
        masked = [x if token in legal else float("-inf") for token, x in enumerate(logits)]
        found: dict[tuple[int, ...], float] = {}
        for token, p in enumerate(reference_probs(masked, params)):
            if p > 0:
                found |= extend((*output, token), mass * p)
        return found

    return extend((), 1.0)


@cache
def outputs(algorithm: str, params: SamplingParams) -> Counter[tuple[int, ...]]:
    config = Config(algorithm=algorithm, max_batch_size=50, mask_policy="eager")
    engine = Engine.build(config, ToyAdapter(), agree_joins=join_in_order)
    seeded = [replace(params, seed=seed) for seed in range(NUM)]
    requests = [Request(str(one.seed), PROMPT, SPEC, one, LENGTH) for one in seeded]
    return Counter(output.token_ids for output in engine.generate(requests))


def p_value(seen: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square; the cells with fewer than five expected are one."""
    if set(seen) - set(expected):
        return 0.0
    cells = [(seen[output], NUM * p) for output, p in expected.items()]
    large = [cell for cell in cells if cell[1] >= 5]
    small = [cell for cell in cells if cell[1] < 5]
    if small:
        large.append((sum(count for count, _ in small), sum(mean for _, mean in small)))
    return float(stats.chisquare([count for count, _ in large], [mean for _, mean in large]).pvalue)


@pytest.mark.parametrize("params", LAWS, ids=str)
@pytest.mark.parametrize("algorithm", ["forced", "forced+ngram", "forced+chain"])
def test_invariant_11_forced_drafts_keep_the_law(algorithm: str, params: SamplingParams) -> None:
    assert p_value(outputs(algorithm, params), law(params)) > LEVEL


def test_the_test_sees_a_forced_spelling_that_is_committed() -> None:
    """What engines do that commit forced text as the tokenizer spells it."""
    jumped: Counter[tuple[int, ...]] = Counter({(3, 3, 3): NUM})
    assert p_value(jumped, law(LAWS[0])) < LEVEL
    seen = outputs("forced", LAWS[0])
    bent = Counter(seen)
    ((likeliest, count),) = seen.most_common(1)
    bent[likeliest] = count + NUM // 10  # a tenth of the requests jump instead
    other = seen.most_common(2)[1][0]
    bent[other] -= NUM // 10
    assert p_value(bent, law(LAWS[0])) < LEVEL
