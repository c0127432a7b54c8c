"""vLLM 0.32's chain walk as a column: in a process of its own, since vLLM needs an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.columns import Step
from benchmarks.grammars import Grammars, text_tokens
from benchmarks.scenes import Scene

PYTHON_VARIABLE = "SPECGRAMMAR_VLLM_PYTHON"
"""Environment variable with the interpreter of an environment that has vLLM."""

_NUM_SCENES = 16
"""Scenes that the process keeps; the next one takes the place of the oldest."""

_ROOT = Path(__file__).resolve().parent.parent
_CHILD = Path(__file__).with_name("vllm_child.py")


class Vllm:
    """vLLM's `validate_tokens` and `StructuredOutputManager.grammar_bitmask`, timed inside its own process."""

    name = "vllm"

    def __init__(self, python: Path) -> None:
        """Start the process, which takes some seconds to be ready; the first question waits for it."""
        library = python.parent.parent / "lib" / "libiomp5.so"
        environment = dict(os.environ)
        if library.exists():
            environment["LD_PRELOAD"] = str(library)
        self._process = subprocess.Popen(
            [str(python), str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._vocabulary = ""
        self._sent: set[str] = set()
        self._numbers = cycle(range(_NUM_SCENES))

    @staticmethod
    def find() -> Path | None:
        """The interpreter that `SPECGRAMMAR_VLLM_PYTHON` names, or of what `make bench-peers` has made."""
        named = os.environ.get(PYTHON_VARIABLE)
        python = Path(named) if named else _ROOT / ".venv-vllm" / "bin" / "python"
        return python if python.exists() else None

    def prepare(self, scene: Scene, grammars: Grammars) -> Step | None:
        """See `Column`."""
        if scene.kind != "chain":
            return None
        number = self._send_scene(scene, grammars, our_grammar=False)
        return lambda: float(self._ask({"step": number})["seconds"])

    def digests(self, scene: Scene, grammars: Grammars) -> list[list[str]]:
        """BLAKE2b of its rows over our compiled grammars: for each request the root's, then each legal draft's.

        Args:
            scene: of kind `chain`.
            grammars: of the scene's vocabulary.
        """
        number = self._send_scene(scene, grammars, our_grammar=True)
        rows: list[list[str]] = self._ask({"rows": number})["rows"]
        return rows

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _send_scene(self, scene: Scene, grammars: Grammars, *, our_grammar: bool) -> int:
        vocabulary = grammars.vocabulary
        if self._vocabulary != vocabulary.fingerprint:
            tokens = [token.decode("latin-1") for token in text_tokens(vocabulary)]
            self._ask({"vocabulary": tokens, "stop_ids": vocabulary.stop_ids})
            self._vocabulary = vocabulary.fingerprint
            self._sent.clear()
        chains = scene.tree.draft_tokens.reshape(scene.bs, scene.num_nodes).tolist()
        requests = []
        for request, chain in zip(scene.requests, chains, strict=True):
            name = self._name(request.document.schema, grammars, our_grammar)
            requests.append({"grammar": name, "committed": request.committed, "drafts": chain[1:]})
        number = next(self._numbers)
        self._ask({"scene": number, "requests": requests})
        return number

    def _name(self, schema: str, grammars: Grammars, our_grammar: bool) -> str:
        """What the process calls the grammar; sent when it is first named."""
        name = f"{'ours' if our_grammar else 'own'} {schema}"
        if name not in self._sent:
            if our_grammar:
                compiled = grammars.compiled("xgrammar", schema).native
                self._ask({"name": name, "compiled": compiled.serialize_json()})
            else:
                self._ask({"name": name, "schema": schema})
            self._sent.add(name)
        return name

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(message) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(
                f"vLLM's process ended with status {self._process.wait()}; run it by hand: "
                f"{' '.join(map(str, self._process.args))}"  # type: ignore[arg-type]  # a list, see above
            )
        answer: dict[str, Any] = json.loads(line)
        return answer
