"""Requests: what is taken, and that a refusal names request and field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specgrammar.errors import ConfigError
from specgrammar.grammar.gate import Markers
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.runtime.request import Request

GOOD: dict[str, Any] = {"request_id": "r", "prompt_tokens": (1, 2)}


def test_sequences_are_kept_as_tuples_of_ints() -> None:
    request = Request(
        "r",
        np.array([1, 2]),  # type: ignore[arg-type]  # what tokenizers return
        GrammarSpec.regex("a"),
        stop_strings=["x"],  # type: ignore[arg-type]  # the same
        stop_token_ids=[3],  # type: ignore[arg-type]  # the same
        grammar_start=[4],  # type: ignore[arg-type]  # the same
    )
    assert (request.prompt_tokens, request.stop_strings) == ((1, 2), ("x",))
    assert (request.stop_token_ids, request.grammar_start) == ((3,), (4,))
    assert {type(token) for token in request.prompt_tokens} == {int}
    assert hash(request) == hash(
        Request(
            "r", (1, 2), GrammarSpec.regex("a"), stop_strings=("x",), stop_token_ids=(3,), grammar_start=(4,)
        )
    )


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("prompt_tokens", "abc", "prompt_tokens = 'abc'; expected a sequence of token ids"),
        ("prompt_tokens", (1, 2.0), r"prompt_tokens\[1\] = 2.0"),
        ("prompt_tokens", (True,), r"prompt_tokens\[0\] = True"),
        ("prompt_tokens", None, "prompt_tokens = None"),
        ("grammar", "a+", r"grammar = 'a\+'; expected a GrammarSpec"),
        ("sampling", {"temperature": 1}, "sampling = {'temperature': 1}; expected SamplingParams"),
        ("sampling", None, "sampling = None; expected SamplingParams"),
        ("max_new_tokens", 0, "max_new_tokens = 0; expected an integer >= 1"),
        ("max_new_tokens", 2.5, "max_new_tokens = 2.5"),
        ("max_new_tokens", True, "max_new_tokens = True"),
        ("max_new_tokens", 2**70, "max_new_tokens = 1180591620717411303424"),
        ("stop_strings", "abc", "stop_strings = 'abc'; expected a sequence of strings"),
        ("stop_strings", ("a", ""), r"stop_strings\[1\] = ''"),
        ("stop_strings", ("\udcff",), r"stop_strings\[0\] = '\\udcff'; expected UTF-8"),
        ("stop_token_ids", 3, "stop_token_ids = 3"),
        ("stop_token_ids", (-1,), r"stop_token_ids\[0\] = -1"),
        ("stop_token_ids", ("a",), r"stop_token_ids\[0\] = 'a'"),
        ("grammar_start", (1,), "grammar_start without a grammar"),
        ("grammar_start", (1, -1), r"grammar_start\[1\] = -1"),
        ("grammar_start", "</think>", "grammar_start = '</think>'"),
        ("logprobs", 1, "logprobs = 1; expected True or False"),
    ],
)
def test_an_impossible_field_is_refused_by_name(field: str, value: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=r"^request 'r': " + named):
        Request(**GOOD | {field: value})


def test_what_opens_a_grammar_is_a_marker_or_a_gate() -> None:
    spec, gate = GrammarSpec.regex("a"), Markers(after=((4,),), at=((5, 6),))
    assert Request("r", (1,), spec).gate is None
    assert Request("r", (1,), spec, grammar_start=(4, 5)).gate == Markers(after=((4, 5),))
    request = Request("r", (1,), spec, grammar_start=gate)
    assert request.gate is request.grammar_start is gate
    assert hash(request) == hash(Request("r", (1,), spec, grammar_start=Markers(after=((4,),), at=((5, 6),))))
    with pytest.raises(ConfigError, match=r"^request 'r': grammar_start without a grammar"):
        Request("r", (1,), grammar_start=gate)
    with pytest.raises(ConfigError, match=r"^request 'r': prompt_tokens = Markers"):
        Request("r", gate, spec)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("request_id", ["", 3, None, "\ud800"])
def test_a_request_needs_a_name(request_id: Any) -> None:
    with pytest.raises(ConfigError, match=r"^request: request_id = "):
        Request(**GOOD | {"request_id": request_id})
