"""vLLM 0.32 with SmolLM2 on the CPU: our scheduler writes what vLLM's own does, from the same rows.

Every engine takes about 20 s to start, so one run answers several questions.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import jsonschema
import pytest

from benchmarks.bfcl import Entry, load_bfcl
from specgrammar_transformers.model_store import fetch_default_model
from tests.vllm_adapter.real.conftest import Run, run_python

pytestmark = pytest.mark.model

NUM_CALLS = 24
OTHERS: list[dict[str, Any]] = [
    {"prompt": "Write a few words.", "grammar": {"regex": "[a-z]{3,9}( [a-z]{3,9}){12,20}"}, "max_tokens": 60},
    {"prompt": "Is water wet?", "grammar": {"choice": ["yes", "no", "it depends"]}},
    {
        "prompt": "Count.",
        "grammar": {"grammar": 'root ::= item (", " item)*\nitem ::= [0-9] [0-9]?'},
        "max_tokens": 60,
    },
    {"prompt": "Describe a cat as JSON.", "grammar": {"json_object": True}, "max_tokens": 80},
    {
        "prompt": "Call <f>.",
        "grammar": {
            "structural_tag": json.dumps(
                {
                    "structures": [
                        {"begin": "<f>", "schema": {"type": "object", "properties": {}}, "end": "</f>"}
                    ],
                    "triggers": ["<f"],
                }
            )
        },
        "max_tokens": 60,
    },
    {
        "prompt": "Is ice cold?",
        "grammar": {"choice": ["yes", "no"]},
        "sampling": {"ignore_eos": True},
        "max_tokens": 40,
    },
]
"""The other kinds that vLLM's front end passes, and a request that goes on behind the end of its grammar."""

REFUSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "not": {"const": {}}}
"""vLLM's front end takes it and drops `not`; a strict backend refuses it."""


@cache
def calls() -> tuple[Entry, ...]:
    return tuple(load_bfcl(limit=NUM_CALLS))


def job(speculation: str, options: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    entries = [{"prompt": entry.prompt, "grammar": {"json": entry.schema}} for entry in calls()]
    model = str(fetch_default_model(progress=False))
    return {"model": model, "entries": entries + OTHERS, "speculation": speculation, "options": options, **more}


def check_calls(result: dict[str, Any]) -> None:
    """24 of 24 ended by themselves and are valid."""
    assert result["reasons"][:NUM_CALLS] == ["stop"] * NUM_CALLS
    for entry, text in zip(calls(), result["texts"], strict=False):
        jsonschema.validate(json.loads(text), entry.schema)


def test_ngram_drafts_give_the_text_and_the_rows_of_vllms_own_scheduler(run: Run) -> None:
    stock = run(**job("ngram", None))
    ours = run(**job("ngram", {}, record=True))
    assert ours["tokens"] == stock["tokens"]
    assert ours["reasons"] == stock["reasons"]
    check_calls(ours)
    recorded = ours["recording"]
    assert recorded["steps"] >= 300
    assert recorded["drafts cut"] > 0
    assert recorded["forced drafts"] > 0
    assert recorded["ended rows"] > 0
    for difference in ("rows otherwise", "validated otherwise", "accepted otherwise"):
        assert recorded[difference] == 0, difference
    assert recorded["tokens"] > recorded["steps"]
    assert recorded["tokens against their row"] == 0
    assert recorded["tokens from rows that restrict nothing"] == 0


def test_the_engine_core_in_a_process_of_its_own(run: Run) -> None:
    stock = run(**job("none", None))
    ours = run(**job("none", {}), multiprocessing=True)
    assert ours["tokens"] == stock["tokens"]
    check_calls(ours)


def test_our_proposer_and_a_request_whose_grammar_does_not_compile(run: Run) -> None:
    stock = run(**job("none", None))
    asked = job("proposer", {"allow_weakened": False})
    asked["entries"].insert(3, {"prompt": "Call f.", "grammar": {"json": REFUSED}})
    ours = run(**asked)
    assert ours["reasons"].pop(3) == "error"
    assert ours["tokens"].pop(3) == []
    ours["texts"].pop(3)
    check_calls(ours)
    assert ours["tokens"] == stock["tokens"]


def test_sampled_requests_and_requests_that_are_preempted_keep_to_their_grammars(run: Run) -> None:
    """Without drafts: with them stock vLLM draws token 0 against a row, now and then, after a preemption.

    Nor are texts compared: vLLM's own differ from run to run then.
    """
    asked = job("none", {}, settings={"max_num_seqs": 8, "num_gpu_blocks_override": 9})
    words = "[a-z]{3,9}( [a-z]{3,9}){150}"
    things = ("the sea", "a cat", "snow", "a car", "tea", "bread")
    long = [{"prompt": f"Write about {it}.", "grammar": {"regex": words}, "max_tokens": 400} for it in things]
    hot = [{**entry, "sampling": {"temperature": 0.8}, "max_tokens": 400} for entry in asked["entries"][:8]]
    asked["entries"] = hot + long
    found = run(**asked)
    assert found["num_preemptions"] > 0
    assert "error" not in found["reasons"]
    for entry, text in zip(calls()[:8], found["texts"], strict=False):
        jsonschema.validate(json.loads(text), entry.schema)
    for text, reason in zip(found["texts"][8:], found["reasons"][8:], strict=True):
        assert re.fullmatch(words if reason == "stop" else "[a-z]{3,9}( [a-z]{3,9})* ?[a-z]{0,2}", text)


def test_what_is_checked_when_the_adapter_is_loaded() -> None:
    found = json.loads(run_python("interfaces.py").splitlines()[-1])
    assert found["problems"] == [""] * len(found["problems"])
    assert found["changed"].startswith("PluginError: vLLM 0.32.")
    assert "the parameters of Scheduler.__init__ is ['vllm_config', " in found["changed"]
    assert "not ['other']" in found["changed"]
    assert "Supported: vllm>=0.32.0,<0.33" in found["changed"]
    assert "no_such_thing" in found["gone"]
    assert "specgrammar_vllm.plugin:register" in found["plugins"]
    assert found["sync"] == found["async"] == ""
    assert "scheduler_cls='specgrammar_vllm.AsyncScheduler'" in found["sync under async"]
    assert "needs async_scheduling, which is off" in found["async under sync"]
    assert "cannot work with a proposer on the host" in found["async with a proposer"]
    assert found["begun"] == ["bound"]
    assert found["begun without grammars"] is found["begun with tokens outstanding"] is None
    assert found["bases"] == [True, True]
