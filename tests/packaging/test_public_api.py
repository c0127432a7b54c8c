"""The public names are frozen, and each of them has a type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.packaging.public_names import public_names

ROOT = Path(__file__).parents[2]
FROZEN = Path(__file__).parent / "public_names.txt"


def test_the_public_names_are_those_that_were_agreed_on() -> None:
    found, frozen = list(public_names()), FROZEN.read_text(encoding="utf-8").splitlines()
    gone, new = sorted(set(frozen) - set(found)), sorted(set(found) - set(frozen))
    hint = "if that is meant: python -m tests.packaging.public_names > tests/packaging/public_names.txt"
    assert not gone, f"users may rely on these, which are gone or take other parameters: {gone}; {hint}"
    assert not new, f"these became public: {new}; {hint}"


def test_every_public_symbol_has_a_type() -> None:
    command = [sys.executable, "-m", "pyright", "--verifytypes", "specgrammar"]
    # pyright asks the first Python on the path where packages are, as in an activated environment.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [*command, "--ignoreexternal", "--outputjson"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PATH": path},
    )
    found = json.loads(done.stdout)["typeCompleteness"]
    untyped = [
        f"{symbol['name']}: {diagnostic['message']}"
        for symbol in found["symbols"]
        if symbol["isExported"] and (not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"])
        for diagnostic in symbol["diagnostics"]
    ]
    assert not untyped, "\n".join(untyped)
    assert found["completenessScore"] == 1.0
