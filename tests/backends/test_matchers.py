"""What the native matchers do beside the contract, which `tests/conformance` checks: they print nothing."""

import subprocess
import sys


def test_nothing_is_written_to_standard_error() -> None:
    code = """
import numpy as np
from specgrammar.protocols.grammar import *
from specgrammar_xgrammar import XGrammarBackend
from specgrammar_llguidance import LLGuidanceBackend
v = Vocabulary((b"a", b"b", b"", b""), (3,), frozenset([2, 3]))
for make in (XGrammarBackend, LLGuidanceBackend):
    backend = make(v)
    m = backend.matcher(backend.compile(GrammarSpec("regex", "a")))
    assert [m.accept(t) for t in (2, 99, -1, 1, 0, 3, 3, 0)] == [False] * 4 + [True, True, False, False]
    for kind, source in (("regex", "("), ("grammar", "root ::= x"), ("grammar", "start: x")):
        try:
            backend.compile(GrammarSpec(kind, source))
        except Exception:
            pass
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
