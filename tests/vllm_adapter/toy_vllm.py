"""vLLM's data, as plain as the walks need it, and a manager whose reasoning ends behind a marker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.testing.toys import VOCABULARY
from specgrammar_vllm.ahead import FillThreads
from specgrammar_vllm.forced import ForcedDrafts
from specgrammar_vllm.grammar import SessionGrammar
from specgrammar_vllm.walks import Walks
from tests.toys import backend

END = VOCABULARY.stop_ids[0]
PROMPT = 13


@dataclass
class ToyStructuredRequest:
    grammar: Any
    reasoning_ended: bool | None = None


@dataclass
class ToyRequest:
    request_id: str
    structured_output_request: ToyStructuredRequest | None = None
    all_token_ids: list[int] = field(default_factory=lambda: [PROMPT])
    max_tokens: int = 100

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - 1

    @property
    def use_structured_output(self) -> bool:
        return self.structured_output_request is not None


class ToyBounds(NamedTuple):
    grammar_start: int
    constraint_start: int


class ToyManager:
    """The grammar begins behind `marker`, or with it where reasoning ends `implicit`ly."""

    def __init__(self, marker: int | None = None, *, implicit: bool = False) -> None:
        self.reasoner_cls = None if marker is None else int
        self.enable_in_reasoning = False
        self._marker, self._implicit = marker, implicit

    def _get_constraint_bounds(
        self,
        request: ToyRequest,
        spec_tokens: Sequence[int],
        spec_tokens_committed: bool = False,  # noqa: ARG002  # the toy's tokens say all
    ) -> ToyBounds:
        assert request.structured_output_request is not None
        if request.structured_output_request.reasoning_ended:
            return ToyBounds(0, 0)
        if self._marker is None or self._marker not in spec_tokens:
            return ToyBounds(len(spec_tokens) + 1, len(spec_tokens) + 1)
        behind = list(spec_tokens).index(self._marker) + 1
        return ToyBounds(behind - self._implicit, behind)


def new_grammar(regex: str, name: str = "xgrammar") -> SessionGrammar:
    chosen = backend(name)
    return SessionGrammar(GrammarSession(VOCABULARY, chosen.matcher(chosen.compile(GrammarSpec.regex(regex)))))


def new_request(request_id: str, regex: str, name: str = "xgrammar") -> ToyRequest:
    return ToyRequest(request_id, ToyStructuredRequest(new_grammar(regex, name)))


def new_walks(
    manager: ToyManager | None = None, *, num_threads: int = 1, forced: ForcedDrafts | None = None
) -> tuple[Walks, NDArray[np.int32]]:
    """Walks over a bitmask that holds what no walk would write."""
    bitmask = np.full((64, VOCABULARY.num_words), 0x5A5A, dtype=np.int32)
    return Walks(manager or ToyManager(), bitmask, FillThreads(num_threads), forced), bitmask
