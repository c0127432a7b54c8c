"""The law of what a request comes to, computed, and how far counted outputs are from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from specgrammar.protocols.grammar import GrammarBackend
from specgrammar.runtime.request import Request
from specgrammar.spec.sampler import truncate_probs

Output = tuple[int, ...]


def law_of(
    request: Request, backend: GrammarBackend, logits_behind: Callable[[Sequence[int]], torch.Tensor]
) -> dict[Output, float]:
    """The probability of every output of a request that has only a grammar and a limit of tokens."""
    vocabulary = backend.vocabulary
    compiled = None if request.grammar is None else backend.compile(request.grammar)
    law: dict[Output, float] = {}
    open_outputs: dict[Output, float] = {(): 1.0}
    while open_outputs:
        output, mass = open_outputs.popitem()
        logits = logits_behind([*request.prompt_tokens, *output])[: vocabulary.vocab_size].clone()
        if compiled is not None:
            row = np.zeros((1, vocabulary.num_words), np.int32)
            matcher = backend.matcher(compiled)
            matcher.accept_prefix(output)
            matcher.fill_bitmask(row, 0)
            legal = np.unpackbits(row.view(np.uint8), bitorder="little")[: vocabulary.vocab_size]
            logits[torch.from_numpy(legal == 0)] = -torch.inf
        for token, p in enumerate(truncate_probs(logits[None], [request.sampling])[0].tolist()):
            if p > 0:
                behind = (*output, token)
                is_over = token in vocabulary.stop_ids or len(behind) == request.max_new_tokens
                (law if is_over else open_outputs)[behind] = mass * p
    return law


def surprise(counts: Mapping[Output, int], law: Mapping[Output, float]) -> float:
    """How many standard deviations the counts' chi-square is from what the law lets expect; 0 or less is usual.

    Outputs that are expected fewer than five times are counted together. By Wilson and Hilferty the cube root
    of a chi-square over its degrees of freedom is nearly normal.
    """
    num = sum(counts.values())
    cells = [(counts.get(output, 0), num * p) for output, p in law.items() if num * p >= 5]
    rest = (num - sum(found for found, _ in cells), num - sum(expected for _, expected in cells))
    if rest[1] >= 5 or rest[0] > 5 + 10 * rest[1]:
        cells.append((rest[0], max(rest[1], 0.5)))
    chi_square = sum((found - expected) ** 2 / expected for found, expected in cells)
    freedom = max(1, len(cells) - 1)
    spread = 2 / (9 * freedom)
    distance: float = ((chi_square / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return distance
