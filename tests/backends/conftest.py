"""Backends over one small vocabulary: single bytes, longer and doubled tokens, special ids, two stop ids."""

from __future__ import annotations

import pytest

from specgrammar.protocols.grammar import GrammarBackend, Vocabulary
from specgrammar.testing.reference import ReferenceBackend
from specgrammar_llguidance import LLGuidanceBackend
from specgrammar_xgrammar import XGrammarBackend

_BYTES = [bytes([b]) for b in b'{}[]:," -.0123456789abcdeEfxtrulsn\\+\n/'] + [
    b"\xc3",
    b"\xa9",
    b"\xf0",
    b"\xff",
]
_LONGER = [
    b"true",
    b'{"',
    b'": ',
    b", ",
    b'"}',
    b"ab",
    b"ab",
    b"null",
    b"12",
    b'"a',
    "é".encode(),
    b"}}",
    b'", "',
]
_SPECIAL = [b"<|im|>", b"", b"</s>", b"<eot>"]


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    tokens = (*_BYTES, *_LONGER, *_SPECIAL)
    size = len(tokens)
    assert size % 32
    return Vocabulary(tokens, (size - 2, size - 1), frozenset(range(size - 4, size)))


@pytest.fixture(scope="session")
def backends(vocabulary: Vocabulary) -> dict[str, GrammarBackend]:
    return {
        "xgrammar": XGrammarBackend(vocabulary, max_threads=2),
        "llguidance": LLGuidanceBackend(vocabulary),
        "reference": ReferenceBackend(vocabulary),
    }


@pytest.fixture(params=["xgrammar", "llguidance", "reference"])
def backend(request: pytest.FixtureRequest, backends: dict[str, GrammarBackend]) -> GrammarBackend:
    return backends[request.param]


@pytest.fixture(params=["xgrammar", "llguidance"])
def native(request: pytest.FixtureRequest, backends: dict[str, GrammarBackend]) -> GrammarBackend:
    return backends[request.param]
