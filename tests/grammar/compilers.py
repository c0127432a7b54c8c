"""A backend whose compiler hangs, crashes or eats memory, as the spec says; a child can make one, too."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from specgrammar.errors import GrammarCompileError, WeakenedSchemaError
from specgrammar.protocols.grammar import BackendFacts, GrammarBackend, GrammarSpec, Vocabulary
from specgrammar.testing.toys import VOCABULARY

FACTS = BackendFacts(None, True, frozenset(), frozenset())
_EVIL = re.compile("(a|aa)+$")


@dataclass(frozen=True)
class Compiled:
    """A grammar that compiled; `num_bytes` says what a test wants it to."""

    spec: GrammarSpec
    num_bytes: int = 1000
    weakened: tuple[str, ...] = ()


@dataclass
class Compiler:
    """A backend; what follows the first word of a source makes specs different from each other.

    Attributes:
        compiled: sources that compiled in this process.
        release: what a source of `wait` waits for.
        is_child: whether it was made in a child.
    """

    compiled: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    is_child: bool = False
    api_version: Literal[1] = 1
    facts: BackendFacts = FACTS
    vocabulary: Vocabulary = VOCABULARY

    def compile(self, spec: GrammarSpec) -> Compiled:
        """Do what the source says."""
        match spec.source.split()[0]:
            case "wait" if not self.is_child:
                assert self.release.wait(60)
            case "refuse":
                self.compiled.append(spec.source)
                raise GrammarCompileError("as it is")
            case "weaken":
                raise WeakenedSchemaError("/a is not enforced")
            case "fail":
                raise ValueError("no\n  such thing")
            case _ if not self.is_child:
                pass
            case "hang":  # in C, with the GIL held: nothing inside the process can end it
                _EVIL.match("a" * 200 + "b")
            case "crash":
                os.abort()
            case "leave":
                os._exit(7)
            case "eat":
                bytearray(1 << 40)
            case "print":
                os.write(1, b'{"outcome": "refused"}\n')
            case "sleep":  # in C, without the GIL
                ctypes.CDLL(None).sleep(60)
        self.compiled.append(spec.source)
        return Compiled(spec)

    def matcher(self, compiled: Any) -> Any:
        """There is none."""
        raise NotImplementedError


class TriedCompiler(Compiler):
    """The same with trials of all but sources that begin with `quick`."""

    def may_hang(self, spec: GrammarSpec) -> bool:
        """See `SupportsTrial`."""
        return not spec.source.startswith("quick")

    def recipe(self) -> Callable[[], GrammarBackend]:
        """See `SupportsTrial`."""
        return partial(Compiler, is_child=True)


def spec(source: str) -> GrammarSpec:
    """A spec of a source."""
    return GrammarSpec("regex", source)
