"""One vLLM engine in vLLM's own environment, started by `test_vllm.py`: a job as JSON, then a result as JSON.

    python tests/vllm_adapter/real/child.py JOB.json RESULT.json

A job has `model`, `entries` (prompts with their structured output), `speculation` (none, ngram, proposer),
`options` (None for stock vLLM, else the table `specgrammar` of `additional_config`), `record` (None, or what
stock vLLM's own manager does is recorded beside ours) and `settings` of the engine that are not the usual ones.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1")

SPECULATION: dict[str, dict[str, Any]] = {
    "none": {},
    "ngram": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 4,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        }
    },
    "proposer": {
        "speculative_config": {
            "method": "custom_class",
            "model": "specgrammar_vllm.Proposer",
            "num_speculative_tokens": 4,
        }
    },
}


def make_engine(job: dict[str, Any]) -> Any:
    """An `LLM` as the job says."""
    from vllm import LLM  # pyright: ignore[reportMissingImports]  # in vLLM's environment only

    ours: dict[str, Any] = {}
    if job["options"] is not None:
        ours = {
            "scheduler_cls": "specgrammar_vllm.Scheduler",
            "additional_config": {"specgrammar": job["options"]},
        }
    return LLM(
        model=job["model"],
        dtype="float32",
        max_model_len=1024,
        enforce_eager=True,
        **{"max_num_seqs": 2, **job.get("settings", {})},
        **SPECULATION[job["speculation"]],
        **ours,
    )


def generate(engine: Any, entries: list[dict[str, Any]]) -> list[Any]:
    """Outputs in order, greedy where an entry does not say otherwise."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]  # in vLLM's environment only
    from vllm.sampling_params import StructuredOutputsParams  # pyright: ignore[reportMissingImports]  # in vLLM's environment only

    tokenizer = engine.get_tokenizer()
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": entry["prompt"]}], tokenize=False, add_generation_prompt=True
        )
        for entry in entries
    ]
    sampling = [
        SamplingParams(
            max_tokens=entry.get("max_tokens", 200),
            structured_outputs=StructuredOutputsParams(**entry["grammar"]),
            **{"temperature": 0, **entry.get("sampling", {})},
        )
        for entry in entries
    ]
    found: list[Any] = engine.generate(prompts, sampling, use_tqdm=False)
    return found


def counted_preemptions(engine: Any) -> list[str]:
    """The ids of requests that the engine takes out of the batch from now on, in this process."""
    scheduler = engine.llm_engine.engine_core.engine_core.scheduler
    found: list[str] = []
    preempt = scheduler._preempt_request

    def noted(request: Any, *arguments: Any, **more: Any) -> Any:
        found.append(request.request_id)
        return preempt(request, *arguments, **more)

    scheduler._preempt_request = noted
    return found


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    engine = make_engine(job)
    recording = None
    if job.get("record"):
        from tests.vllm_adapter.real.recording import Recording

        recording = Recording(engine.llm_engine.engine_core.engine_core.scheduler)
    in_process = os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    preempted = counted_preemptions(engine) if in_process else []
    begin = time.perf_counter()
    outputs = [output.outputs[0] for output in generate(engine, job["entries"])]
    result: dict[str, Any] = {
        "seconds": time.perf_counter() - begin,
        "texts": [output.text for output in outputs],
        "tokens": [list(output.token_ids) for output in outputs],
        "reasons": [output.finish_reason for output in outputs],
        "num_preemptions": len(preempted),
    }
    if recording is not None:
        result["recording"] = recording.summary()
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
