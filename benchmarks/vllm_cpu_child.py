"""One engine of `vllm_cpu`: a program in vLLM's own environment, a JSON message a line on either side.

{"model", "entries", "compact", "batch_size", "speculative_config", "options"}   {"ready": true}
{"slice": [begin, end]}                                                          what these entries took

An entry has a `prompt` and a `schema`; without `options` the engine is stock vLLM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1")
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever else is printed is no answer

WALKS = {"validate_tokens": "validate_us", "grammar_bitmask": "bitmask_us", "accept_tokens": "accept_us"}


class Walks:
    """Times the three walks of an engine's structured output manager, ours or vLLM's, and our fill thread."""

    def __init__(self, manager: Any) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.num_steps = 0
        for name, key in WALKS.items():
            setattr(manager, name, self._timed(getattr(manager, name), key))
        if hasattr(manager, "begin"):
            manager.begin = self._timed(manager.begin, "bitmask_us", counts_as_step=False)
            manager._fill = self._in_its_thread(manager._fill)

    def _timed(self, call: Callable[..., Any], key: str, *, counts_as_step: bool = True) -> Callable[..., Any]:
        is_step = key == "bitmask_us" and counts_as_step

        def timed(*arguments: Any) -> Any:
            time.perf_counter()  # a forward leaves the clock's own code out of the cache, too
            begin = time.perf_counter()
            found = call(*arguments)
            self.seconds[key] += time.perf_counter() - begin
            self.num_steps += is_step
            return found

        return timed

    def _in_its_thread(self, fill: Callable[..., Any]) -> Callable[..., Any]:
        """What a thread spends that is not the scheduler's: the processor's time, not the wait for it."""
        import threading

        scheduler = threading.get_ident()

        def timed(*arguments: Any) -> None:
            if threading.get_ident() == scheduler:
                fill(*arguments)
                return
            begin = time.thread_time()
            fill(*arguments)
            self.seconds["aside_us"] += time.thread_time() - begin

        return timed

    def take(self) -> dict[str, float]:
        """Microseconds a step since the last call."""
        found = {key: 1e6 * self.seconds[key] / max(1, self.num_steps) for key in (*WALKS.values(), "aside_us")}
        found["walks_us"] = sum(found[key] for key in WALKS.values())
        found["num_steps"] = self.num_steps
        self.seconds.clear()
        self.num_steps = 0
        return found


def main() -> None:
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]  # in vLLM's environment only
    from vllm.sampling_params import StructuredOutputsParams  # pyright: ignore[reportMissingImports]

    job = json.loads(sys.stdin.readline())
    ours = {}
    if "options" in job:
        ours = {
            "scheduler_cls": "specgrammar_vllm.Scheduler",
            "additional_config": {"specgrammar": job["options"]},
        }
    engine = LLM(
        model=job["model"],
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=job["batch_size"],
        enforce_eager=True,
        enable_prefix_caching=False,
        speculative_config=job["speculative_config"],
        structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": job["compact"]},
        **ours,
    )
    tokenizer = engine.get_tokenizer()
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": entry["prompt"]}], tokenize=False, add_generation_prompt=True
        )
        for entry in job["entries"]
    ]
    walks = Walks(engine.llm_engine.engine_core.engine_core.scheduler.structured_output_manager)
    print(json.dumps({"ready": True}), file=ANSWERS, flush=True)
    for line in sys.stdin:
        part = slice(*json.loads(line)["slice"])
        sampling = [
            SamplingParams(
                temperature=0, max_tokens=200, structured_outputs=StructuredOutputsParams(json=entry["schema"])
            )
            for entry in job["entries"][part]
        ]
        begin = time.perf_counter()
        outputs = [output.outputs[0] for output in engine.generate(prompts[part], sampling, use_tqdm=False)]
        seconds = time.perf_counter() - begin
        num_tokens = sum(len(output.token_ids) for output in outputs)
        took = walks.take()
        answer = {
            **took,
            "tokens_per_s": num_tokens / seconds,
            "tokens_per_step": num_tokens / took["num_steps"],
            "texts": [output.text for output in outputs],
        }
        print(json.dumps(answer), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
