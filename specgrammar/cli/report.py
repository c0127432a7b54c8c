"""What `generate` prints: outputs, the summary, and the table of statistics."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from specgrammar.cli.sources import source_table, sources_as_json
from specgrammar.cli.table import table
from specgrammar.config import Config

if TYPE_CHECKING:
    from specgrammar.runtime.engine import Engine
    from specgrammar.runtime.request import RequestOutput


def print_output(output: RequestOutput, style: str) -> None:
    """One output to standard output, and to standard error what the text style does not say by itself."""
    request = f"request {output.request_id!r}"
    if style == "json":
        print(json.dumps(as_json(output), ensure_ascii=False), flush=True)
    elif output.error is None:
        print(output.text, flush=True)
        for note in _notes(output):
            _say("note", f"{request}{note}")
    if output.error is not None:
        _say("error", f"{request}: {output.error}")


def _notes(output: RequestOutput) -> Iterator[str]:
    """What somebody who reads the text alone would miss."""
    if output.weakened:
        yield f": not enforced: {', '.join(output.weakened)}"
    if output.finish_reason == "length":
        yield f" stopped after {len(output.token_ids)} tokens (length): the text is incomplete"


def _say(kind: str, message: str) -> None:
    print(f"specgrammar: {kind}: {' '.join(message.split())}", file=sys.stderr, flush=True)


def as_json(output: RequestOutput) -> dict[str, Any]:
    """An output as a JSON object."""
    line: dict[str, Any] = {
        "id": output.request_id,
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "error": output.error,
        "num_tokens": len(output.token_ids),
        "num_verify_steps": output.num_verify_steps,
        "mean_accept_length": round(output.mean_accept_length, 4),
    }
    if output.weakened:
        line["weakened"] = list(output.weakened)
    if output.grammar_engaged is False:
        line["grammar_engaged"] = False
    if output.logprobs is not None:
        line["logprobs"] = [round(value, 6) for value in output.logprobs]
    return line


def summary(outputs: Sequence[RequestOutput], engine: Engine, config: Config, seconds: float) -> dict[str, Any]:
    """The statistics of a run. `mean_accept_length` is tokens per verify step and request.

    Steps that were masked lazily know of the grammar's rejections on the target's path alone, so that
    `num_rejected_by_grammar` counts the other steps'.
    """
    trace = engine.trace
    num_tokens = sum(len(output.token_ids) for output in outputs)
    num_verified = sum(output.num_verify_steps for output in outputs)
    return {
        "backend": config.backend,
        "algorithm": config.algorithm,
        "mask_policy": engine.masking,
        "num_requests": len(outputs),
        "num_errors": sum(output.finish_reason == "error" for output in outputs),
        "num_tokens": num_tokens,
        "num_verify_steps": num_verified,
        "num_forwards": trace.num_steps,
        "num_overlapped_steps": trace.num_overlapped_steps,
        "mean_accept_length": round(num_tokens / num_verified, 4) if num_verified else 0.0,
        "num_pruned": trace.num_pruned,
        "num_draft_tokens": trace.num_draft_tokens,
        "num_accepted": trace.num_accepted,
        "num_rejected_by_grammar": trace.num_rejected_by_grammar,
        "num_rejected_by_target": trace.num_rejected_by_target,
        "num_mask_rows": trace.num_mask_rows,
        "num_stale_drafts": trace.num_stale_drafts,
        "num_never_engaged": trace.num_never_engaged,
        "seconds": round(seconds, 4),
        "tokens_per_second": round(num_tokens / seconds, 2) if seconds else 0.0,
        "seconds_by_stage": {stage: round(spent, 4) for stage, spent in trace.seconds.items()},
        **sources_as_json(trace.sources),
    }


def print_summary(
    outputs: Sequence[RequestOutput], engine: Engine, config: Config, seconds: float, style: str
) -> None:
    """The summary line (standard output, JSON style) and the table (standard error, unless all failed)."""
    values = summary(outputs, engine, config, seconds)
    if style == "json":
        print(json.dumps({"summary": values}), flush=True)
    if free := [output.request_id for output in outputs if output.grammar_engaged is False]:
        few = ", ".join(map(repr, free[:8])) + (", ..." if len(free) > 8 else "")
        _say(
            "note",
            f"the grammar never began in {len(free)} of {len(outputs)} requests, which are free text: {few}",
        )
    if values["num_errors"] == values["num_requests"]:
        return  # nothing was generated: zeros would only push the errors off the screen
    stages, sources = values.pop("seconds_by_stage"), values.pop("sources", None)
    values.pop("ms_per_verified_node", None)
    rows: list[tuple[str, object]] = [(name.replace("_", " "), value) for name, value in values.items()]
    rows += [
        (f"  {stage}, ms per forward", 1e3 * spent / max(1, engine.trace.num_steps))
        for stage, spent in stages.items()
    ]
    print(table(("statistic", "value"), rows), file=sys.stderr)
    if sources is not None:
        print(f"\n{source_table(engine.trace.sources)}", file=sys.stderr)
