"""The contract of `GrammarMatcher`, on every backend."""

import json
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgrammar.errors import DeadEndError, MatcherError
from specgrammar.protocols.grammar import GrammarBackend, GrammarMatcher, GrammarSpec, Vocabulary

SPECS = [
    GrammarSpec("regex", "[ab]{0,3}(ab)*|true"),
    GrammarSpec("choice", json.dumps(["ab", "abab", "", "é"])),
    GrammarSpec(
        "json_schema",
        json.dumps({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}),
    ),
    GrammarSpec("json_object", whitespace="compact"),
]
fixtures_are_stateless = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def bits(matcher: GrammarMatcher, vocabulary: Vocabulary) -> list[int]:
    """Legal ids; every bit of the row was written."""
    bitmask = np.full((3, vocabulary.num_words), 0x55555555, np.int32)
    try:
        matcher.fill_bitmask(bitmask, 1)
    except DeadEndError:
        assert not bitmask[1].any()
    assert (bitmask[[0, 2]] == 0x55555555).all()
    flags = np.unpackbits(bitmask[1].view(np.uint8), bitorder="little")
    assert not flags[vocabulary.vocab_size :].any()
    return [int(i) for i in np.flatnonzero(flags)]


def ids(vocabulary: Vocabulary, text: bytes) -> list[int]:
    return [vocabulary.tokens.index(text[i : i + 1]) for i in range(len(text))]


@fixtures_are_stateless
@given(data=st.data())
def test_invariant_1_rollback_equals_replay(
    backend: GrammarBackend, vocabulary: Vocabulary, data: st.DataObject
) -> None:
    compiled = backend.compile(data.draw(st.sampled_from(SPECS)))
    matcher = backend.matcher(compiled)
    accepted: list[int] = []
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["legal", "legal", "legal", "any", "rollback", "bad", "fill"])):
            case "legal":
                if legal := bits(matcher, vocabulary):
                    token = data.draw(st.sampled_from(legal))
                    assert matcher.accept(token)
                    accepted.append(token)
            case "any":
                token = data.draw(st.integers(-2, vocabulary.vocab_size + 40))
                legal = bits(matcher, vocabulary)
                assert matcher.accept(token) == (token in legal)
                accepted += [token] * (token in legal)
            case "rollback":
                num_tokens = data.draw(st.integers(0, len(accepted)))
                matcher.rollback(num_tokens)
                del accepted[len(accepted) - num_tokens :]
            case "bad":
                wrong = data.draw(st.sampled_from([-1, len(accepted) + 1, 10**6]))
                with pytest.raises(MatcherError, match=f"rollback\\({wrong}\\)"):
                    matcher.rollback(wrong)
        replay = backend.matcher(compiled)
        assert replay.accept_prefix(accepted) == len(accepted)
        assert matcher.finished == replay.finished == bool(accepted and accepted[-1] in vocabulary.stop_ids)
        assert bits(matcher, vocabulary) == bits(replay, vocabulary)
        assert bits(matcher.fork(), vocabulary) == bits(replay, vocabulary)


@pytest.mark.parametrize("regex", ["ab", "ab[ab]*"])
def test_the_stop_token_is_one_step(backend: GrammarBackend, vocabulary: Vocabulary, regex: str) -> None:
    matcher = backend.matcher(backend.compile(GrammarSpec("regex", regex)))
    first, second = vocabulary.stop_ids
    assert not matcher.accept(first)
    assert matcher.accept_prefix([*ids(vocabulary, b"ab"), second, first]) == 3
    assert matcher.finished
    assert not matcher.accept(first)
    assert not matcher.accept(ids(vocabulary, b"a")[0])
    assert bits(matcher, vocabulary) == []
    matcher.rollback(1)
    assert not matcher.finished
    assert set(vocabulary.stop_ids) <= set(bits(matcher, vocabulary))
    assert matcher.accept(first)
    matcher.rollback(3)
    assert matcher.accept_prefix(ids(vocabulary, b"ab")) == 2


def test_special_ids_are_never_legal(backend: GrammarBackend, vocabulary: Vocabulary) -> None:
    matcher = backend.matcher(backend.compile(GrammarSpec("json_schema", '{"type": "string"}')))
    assert matcher.accept_prefix(ids(vocabulary, b'"a')) == 2
    legal = bits(matcher, vocabulary)
    assert not vocabulary.special_ids & set(legal)
    for token in vocabulary.special_ids:
        assert not matcher.accept(token)
    assert bits(matcher, vocabulary) == legal


def test_a_dead_end_is_raised_and_can_be_left(backend: GrammarBackend, vocabulary: Vocabulary) -> None:
    matcher = backend.matcher(backend.compile(GrammarSpec("choice", json.dumps(["abz", "aba"]))))
    assert matcher.accept_prefix(ids(vocabulary, b"ab")) == 2
    assert bits(matcher, vocabulary) == ids(vocabulary, b"a")
    dead = backend.matcher(backend.compile(GrammarSpec("choice", json.dumps(["abz"]))))
    assert dead.accept_prefix(ids(vocabulary, b"ab")) == 2
    bitmask = np.full((1, vocabulary.num_words), -1, np.int32)
    for _ in range(2):
        with pytest.raises(DeadEndError, match="not even a stop token"):
            dead.fill_bitmask(bitmask, 0)
        assert not bitmask.any()
    dead.rollback(1)
    assert bits(dead, vocabulary) == ids(vocabulary, b"b")


def test_bitmasks_not_to_contract_are_refused(backend: GrammarBackend, vocabulary: Vocabulary) -> None:
    matcher = backend.matcher(backend.compile(GrammarSpec("regex", "a*")))
    words = vocabulary.num_words
    readonly = np.zeros((2, words), np.int32)
    readonly.flags.writeable = False
    wrong: list[Any] = [
        np.zeros((2, words + 1), np.int32),
        np.zeros((2, words), np.int64),
        np.zeros((words,), np.int32),
        np.zeros((4, words), np.int32)[::2],
        np.asfortranarray(np.zeros((2, words), np.int32)),
        readonly,
    ]
    for bitmask in wrong:
        before = bitmask.copy()
        with pytest.raises(MatcherError):
            matcher.fill_bitmask(bitmask, 0)
        assert (bitmask == before).all()
    for row in (-1, 2):
        with pytest.raises(MatcherError, match=f"row {row}"):
            matcher.fill_bitmask(np.zeros((2, words), np.int32), row)


def test_every_text_token_and_no_spare_bit_in_a_row_that_restricts_nothing() -> None:
    from specgrammar.testing.reference import ReferenceBackend
    from specgrammar_llguidance import LLGuidanceBackend
    from specgrammar_xgrammar import XGrammarBackend

    for size in (3, 32, 33):
        tokens = (*(b"a" * (1 + i % 3) for i in range(size - 1)), b"")
        vocabulary = Vocabulary(tokens, (size - 1,), frozenset([size - 1]))
        made: GrammarBackend
        for made in (XGrammarBackend(vocabulary), LLGuidanceBackend(vocabulary), ReferenceBackend(vocabulary)):
            bitmask = np.full((1, vocabulary.num_words), 0x55555555, np.int32)
            matcher = made.matcher(made.compile(GrammarSpec("regex", "a*")))
            matcher.fill_bitmask(bitmask, 0)
            assert np.unpackbits(bitmask.view(np.uint8), bitorder="little").sum() == size


def test_forks_are_independent(backend: GrammarBackend, vocabulary: Vocabulary) -> None:
    matcher = backend.matcher(backend.compile(GrammarSpec("regex", "a[ab]{2}")))
    a, b = ids(vocabulary, b"ab")
    assert matcher.accept(a)
    fork = matcher.fork()
    assert fork.accept_prefix([b, b]) == 2
    assert fork.accept(vocabulary.stop_ids[0])
    assert not matcher.finished
    assert matcher.accept_prefix([a, a]) == 2
    fork.rollback(3)
    assert bits(fork, vocabulary) == sorted({a, b} | {i for i, t in enumerate(vocabulary.tokens) if t == b"ab"})


def test_threads_share_a_backend(native: GrammarBackend, vocabulary: Vocabulary) -> None:
    assert native.facts.thread_safe
    compiled = native.compile(SPECS[2])
    text = ids(vocabulary, b'{"a": 12, "b": "ab"}')
    serial = native.matcher(compiled)
    expected = []
    for token in text:
        expected.append(bits(serial, vocabulary))
        assert serial.accept(token)
    seen: list[list[list[int]]] = []

    def work() -> None:
        matcher, rows = native.matcher(compiled), []
        for token in text:
            rows.append(bits(matcher, vocabulary))
            matcher.accept(token)
        seen.append(rows)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [expected] * 4


def test_nothing_is_written_to_standard_error() -> None:
    code = """
import numpy as np
from specgrammar.protocols.grammar import *
from specgrammar_xgrammar import XGrammarBackend
from specgrammar_llguidance import LLGuidanceBackend
v = Vocabulary((b"a", b"b", b"", b""), (3,), frozenset([2, 3]))
for make in (XGrammarBackend, LLGuidanceBackend):
    backend = make(v)
    m = backend.matcher(backend.compile(GrammarSpec("regex", "a")))
    assert [m.accept(t) for t in (2, 99, -1, 1, 0, 3, 3, 0)] == [False] * 4 + [True, True, False, False]
    for kind, source in (("regex", "("), ("grammar", "root ::= x"), ("grammar", "start: x")):
        try:
            backend.compile(GrammarSpec(kind, source))
        except Exception:
            pass
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_grammars_of_another_backend_are_refused(backends: dict[str, GrammarBackend]) -> None:
    compiled = {name: backend.compile(SPECS[0]) for name, backend in backends.items()}
    for name, backend in backends.items():
        for other in compiled.keys() - {name}:
            with pytest.raises(MatcherError, match=f"{name}: the grammar was compiled by another backend"):
                backend.matcher(compiled[other])
