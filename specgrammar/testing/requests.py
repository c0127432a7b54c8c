"""The pool of requests that schedules draw from: every way to constrain, to sample and to end."""

from __future__ import annotations

from random import Random

from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.runtime.request import Request
from specgrammar.spec.sampling import SamplingParams

_NUM_REQUESTS = 96
_PROMPTS = ((0, 1, 0, 1), (4,), (12, 13, 12, 13, 12), (6, 9, 10, 12, 7))
_GRAMMARS = (
    None,
    GrammarSpec.regex("([abc12]|: |, ){12,40}"),
    GrammarSpec.regex("([abc12]|: |, ){9}(, |a)*"),
    GrammarSpec.regex("(ab){3,9}c"),
    GrammarSpec.regex("[abc12]{8,}"),
    GrammarSpec.regex("a{2,5}(b|c)?"),
    GrammarSpec.choice(["a", "ab", "abc", "bc12"]),
    GrammarSpec.regex('(\\{"a":[12]+\\}(, )?)*'),
)
_MARKERS = ((), (), (2,), (0, 1), (3,))
_STOP_STRINGS = ((), (), ("c1",), ("bb", "2, "), ("abc",))


def _request(number: int) -> Request:
    random = Random(number)
    grammar = random.choice(_GRAMMARS)
    seed = random.randrange(100)
    sampling = random.choice(
        (
            SamplingParams(),
            SamplingParams(),
            SamplingParams(temperature=0.8, seed=seed),
            SamplingParams(temperature=1.5, seed=seed),
            SamplingParams(temperature=1.0, top_k=3, seed=seed),
            SamplingParams(temperature=1.2, top_p=0.8, min_p=0.05, seed=seed),
        )
    )
    return Request(
        request_id=str(number),
        prompt_tokens=random.choice(_PROMPTS),
        grammar=grammar,
        sampling=sampling,
        max_new_tokens=random.choice((1, 7, 12, 16, 24)),
        stop_strings=random.choice(_STOP_STRINGS),
        stop_token_ids=random.choice(((), (), (), (14,), (5, 14))),
        grammar_start=random.choice(_MARKERS) if grammar is not None else (),
        logprobs=random.randrange(6) == 0,
    )


REQUESTS = tuple(map(_request, range(_NUM_REQUESTS)))
