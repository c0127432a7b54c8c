"""Both native backends give the bits of the reference, everywhere."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.errors import DeadEndError, GrammarCompileError
from specgrammar.protocols.grammar import GrammarBackend, GrammarKind, GrammarSpec, Vocabulary, Whitespace
from tests.backends.schemas import schemas

REGEXES = [
    "[a-e]{1,3}(ab)*|true",
    "[^a]b?",
    ".*",
    "(a|ab|abx)*d",
    "\\d{2,70}x",
    "a{0,200}b",
    "a{65}b{64}",
    "(é|ab|x{0,2}){0,3}",
    "(a*b*)*c",
    "",
    "(?:a|b){63,130}",
    "[\\x{10000}-\\x{10FFFF}]+",
]


def assert_equal_walk(
    backends: dict[str, GrammarBackend], spec: GrammarSpec, seed: int, num_tokens: int
) -> None:
    rng = random.Random(seed)
    vocabulary = backends["reference"].vocabulary
    matchers = {name: backend.matcher(backend.compile(spec)) for name, backend in backends.items()}
    for _ in range(num_tokens):
        rows: dict[str, list[int]] = {}
        for name, matcher in matchers.items():
            bitmask = np.full((1, vocabulary.num_words), -1, np.int32)
            try:
                matcher.fill_bitmask(bitmask, 0)
            except DeadEndError:
                assert not bitmask.any()
            rows[name] = np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little")).tolist()
        assert rows["xgrammar"] == rows["reference"]
        assert rows["llguidance"] == rows["reference"]
        if not rows["reference"]:
            return
        token = rng.choice(rows["reference"])
        assert [matcher.accept(token) for matcher in matchers.values()] == [True] * 3
        if token in vocabulary.stop_ids:
            return


@pytest.mark.parametrize("regex", REGEXES)
def test_regexes(backends: dict[str, GrammarBackend], regex: str) -> None:
    for seed in range(4):
        assert_equal_walk(backends, GrammarSpec("regex", regex), seed, 80)


@settings(max_examples=40, deadline=None)
@given(
    choices=st.lists(st.text('ab12é"\\zλ\n', max_size=4), min_size=1, max_size=6), seed=st.integers(0, 2**32)
)
def test_choices_also_those_that_cannot_be_spelt(
    backends: dict[str, GrammarBackend], choices: list[str], seed: int
) -> None:
    assert_equal_walk(backends, GrammarSpec("choice", json.dumps(choices)), seed, 12)


@settings(max_examples=150, deadline=None)
@given(
    schema=schemas, seed=st.integers(0, 2**32), whitespace=st.sampled_from(["spaced", "compact", "flexible"])
)
def test_schemas(
    backends: dict[str, GrammarBackend], schema: object, seed: int, whitespace: Whitespace
) -> None:
    spec = GrammarSpec("json_schema", json.dumps(schema), whitespace=whitespace, allow_weakened=True)
    errors = set()
    for backend in backends.values():
        try:
            backend.compile(spec)
        except GrammarCompileError as error:
            errors.add(str(error))
        else:
            errors.add("")
    assert len(errors) == 1
    if errors == {""}:
        assert_equal_walk(backends, spec, seed, 40)


@pytest.mark.parametrize("kind", ["json_object"])
def test_any_json(backends: dict[str, GrammarBackend], kind: GrammarKind, vocabulary: Vocabulary) -> None:
    assert vocabulary.vocab_size < 96
    for seed in range(10):
        assert_equal_walk(backends, GrammarSpec(kind), seed, 60)
