"""The sampling law of one row, slow and obvious: float64, one token at a time, straight from its definition."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specgrammar.spec.sampling import SamplingParams


def reference_probs(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """The distribution of the next token; `logits` are masked with -inf and at least one is finite.

    Temperature, then top-k, top-p and min-p, each on the renormalised rest of the one before; a token stays or
    goes together with its equals.
    """
    best = max(logits)
    if params.greedy:
        return [float(i == logits.index(best)) for i in range(len(logits))]
    probs = normalised([math.exp((x - best) / params.temperature) for x in logits])
    if params.top_k:
        probs = normalised([p if sum(o > p for o in probs) < params.top_k else 0.0 for p in probs])
    if params.top_p < 1:
        probs = normalised([p if sum(o for o in probs if o > p) < params.top_p else 0.0 for p in probs])
    return normalised([p if p >= params.min_p * max(probs) else 0.0 for p in probs])


def normalised(weights: Sequence[float]) -> list[float]:
    """The weights over their sum."""
    total = sum(weights)
    return [weight / total for weight in weights]
