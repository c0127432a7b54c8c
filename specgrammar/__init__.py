"""Grammar-constrained speculative decoding for any LLM engine.

`import specgrammar` imports neither torch nor a grammar backend; names that need them load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specgrammar.config import Config
    from specgrammar.errors import SpecGrammarError
    from specgrammar.grammar.build import build_grammar_mask
    from specgrammar.grammar.dense import fill_dense
    from specgrammar.grammar.session import GrammarSession
    from specgrammar.protocols.grammar import GrammarSpec, NodeStatus, Vocabulary
    from specgrammar.runtime.engine import Engine
    from specgrammar.runtime.request import Request, RequestOutput
    from specgrammar.spec.sampling import SamplingParams
    from specgrammar.trees.tree import DraftTree, HostTree

_HOMES = {
    "Config": "specgrammar.config",
    "DraftTree": "specgrammar.trees.tree",
    "Engine": "specgrammar.runtime.engine",
    "GrammarSession": "specgrammar.grammar.session",
    "GrammarSpec": "specgrammar.protocols.grammar",
    "HostTree": "specgrammar.trees.tree",
    "NodeStatus": "specgrammar.protocols.grammar",
    "Request": "specgrammar.runtime.request",
    "RequestOutput": "specgrammar.runtime.request",
    "SamplingParams": "specgrammar.spec.sampling",
    "SpecGrammarError": "specgrammar.errors",
    "Vocabulary": "specgrammar.protocols.grammar",
    "build_grammar_mask": "specgrammar.grammar.build",
    "fill_dense": "specgrammar.grammar.dense",
}

__version__ = "0.1.0"
__all__ = [
    "Config",
    "DraftTree",
    "Engine",
    "GrammarSession",
    "GrammarSpec",
    "HostTree",
    "NodeStatus",
    "Request",
    "RequestOutput",
    "SamplingParams",
    "SpecGrammarError",
    "Vocabulary",
    "build_grammar_mask",
    "fill_dense",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'specgrammar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
