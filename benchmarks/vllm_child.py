"""vLLM's side of its column: a program that the benchmark starts in vLLM's own environment.

It reads a JSON object a line on standard input and answers each with one on standard output. It imports vLLM,
torch, xgrammar and nothing of this project.

    {"vocabulary": [token in Latin-1, ...], "stop_ids": [...]}    {"ready": true}
    {"name", "schema"}                                            {"ready": true}   through xgrammar's converter
    {"name", "compiled"}                                          {"ready": true}   by `serialize_json`
    {"scene": number, "requests": [{"grammar": name, "committed", "drafts"}]}
                                                                  {"ready": true}   takes the number's place
    {"step": number}                                              {"seconds": float}
    {"rows": number}                                              {"rows": [[digest of each row, ...], ...]}
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever else is printed is no answer

# ruff: noqa: E402  (vLLM writes to the streams as they are when it is imported)
import xgrammar
from vllm.v1.structured_output import StructuredOutputManager  # pyright: ignore[reportMissingImports]  # in vLLM's environment only
from vllm.v1.structured_output.backend_xgrammar import (  # pyright: ignore[reportMissingImports]  # in vLLM's environment only
    XgrammarBackend,
    XgrammarGrammar,
)


class Grammars:
    """Compiled grammars of one vocabulary, by name."""

    def __init__(self, tokens: list[str], stop_ids: list[int]) -> None:
        self.vocab_size = len(tokens)
        encoded = [token.encode("latin-1") for token in tokens]
        self._info = xgrammar.TokenizerInfo(
            encoded, xgrammar.VocabType.RAW, vocab_size=self.vocab_size, stop_token_ids=stop_ids
        )
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=os.cpu_count() or 1)
        self.compiled: dict[str, xgrammar.CompiledGrammar] = {}

    def compile(self, name: str, schema: str) -> None:
        """Compile through xgrammar's own converter."""
        self.compiled[name] = self._compiler.compile_json_schema(schema, any_whitespace=False)

    def load(self, name: str, compiled: str) -> None:
        """Take what `CompiledGrammar.serialize_json` wrote."""
        self.compiled[name] = xgrammar.CompiledGrammar.deserialize_json(compiled, self._info)


class Scene:
    """vLLM's manager over a batch of chains: the scheduler's two calls of a step."""

    def __init__(self, requests: list[dict[str, Any]], grammars: Grammars) -> None:
        num_drafts = max(len(request["drafts"]) for request in requests)
        config = SimpleNamespace(
            num_speculative_tokens=num_drafts,
            parallel_config=SimpleNamespace(distributed_executor_backend="uni"),
            scheduler_config=SimpleNamespace(max_num_seqs=len(requests)),
            model_config=SimpleNamespace(skip_tokenizer_init=True, is_diffusion=False),
            structured_outputs_config=SimpleNamespace(enable_in_reasoning=False),
        )
        self._manager = StructuredOutputManager(config)
        backend = XgrammarBackend.__new__(XgrammarBackend)  # only its memory is asked for
        backend.vocab_size = grammars.vocab_size
        self._manager.backend = backend
        self._requests, self._drafts = {}, {}
        for index, request in enumerate(requests):
            compiled = grammars.compiled[request["grammar"]]
            matcher = xgrammar.GrammarMatcher(compiled, max_rollback_tokens=num_drafts)
            grammar = XgrammarGrammar(vocab_size=grammars.vocab_size, matcher=matcher, ctx=compiled)
            name = str(index)
            assert grammar.accept_tokens(name, request["committed"])
            structured = SimpleNamespace(grammar=grammar, reasoning_ended=True)
            self._requests[name] = SimpleNamespace(structured_output_request=structured)
            self._drafts[name] = request["drafts"]

    def step(self) -> tuple[dict[str, list[int]], Any]:
        """Cut the drafts to their legal prefix, then fill: what the scheduler schedules, and the rows."""
        legal = {
            name: self._requests[name].structured_output_request.grammar.validate_tokens(drafts)
            for name, drafts in self._drafts.items()
        }
        return legal, self._manager.grammar_bitmask(self._requests, list(self._requests), legal)

    def digests(self) -> list[list[str]]:
        """For each request, a digest of each of its rows: the root's and those of its legal drafts."""
        legal, rows = self.step()
        found, first = [], 0
        for drafts in legal.values():
            of_request = rows[first : first + len(drafts) + 1]
            found.append([hashlib.blake2b(row.tobytes()).hexdigest() for row in of_request])
            first += len(drafts) + 1
        return found


def main() -> None:
    grammars: Any = None
    scenes: dict[int, Scene] = {}
    for line in sys.stdin:
        answer: dict[str, Any] = {"ready": True}
        match json.loads(line):
            case {"vocabulary": tokens, "stop_ids": stop_ids}:
                grammars = Grammars(tokens, stop_ids)
            case {"name": name, "schema": schema}:
                grammars.compile(name, schema)
            case {"name": name, "compiled": compiled}:
                grammars.load(name, compiled)
            case {"scene": number, "requests": requests}:
                scenes[number] = Scene(requests, grammars)
            case {"rows": number}:
                answer = {"rows": scenes[number].digests()}
            case {"step": number}:
                begin = time.perf_counter()
                scenes[number].step()
                answer = {"seconds": time.perf_counter() - begin}
            case _:
                raise ValueError(f"unknown message {line[:100]!r}")
        print(json.dumps(answer), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
