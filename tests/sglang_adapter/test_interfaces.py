"""How the engine's interfaces are checked: on the standard library, which stays as it is."""

from __future__ import annotations

import pytest

from specgrammar.errors import PluginError
from specgrammar_sglang import engine
from specgrammar_sglang.engine import Interface, check_interfaces, check_version
from specgrammar_sglang.plugin import algorithm_names


@pytest.mark.parametrize(
    ("interface", "problem"),
    [
        (Interface("json:dumps", parameters=("obj", "indent")), ""),
        (Interface("json:dumps", parameters=("obj", "colour")), "json:dumps takes no colour"),
        (Interface("json:JSONDecoder", parameters=("strict",), members=("decode",)), ""),
        (
            Interface("json:JSONDecoder", members=("decode", "guess", "hope")),
            "json:JSONDecoder has no guess, hope",
        ),
        (Interface("json:JSONDecoder", members=("memo",)), "json:JSONDecoder has no memo"),
        (Interface("json:JSONDecoder", members=("memo",), example=()), ""),
        (Interface("json:gone"), "json:gone is not there"),
        (Interface("no_such_module:name"), "no_such_module:name is not there"),
        (Interface("json:JSONDecoder.decode", parameters=("s",)), ""),
        (Interface("enum:Enum", members=("__reduce_ex__",)), ""),
        (Interface("specgrammar_sglang.engine:Interface", members=("path", "problem")), ""),
    ],
)
def test_what_is_not_as_expected_is_named(interface: Interface, problem: str) -> None:
    found = interface.problem()
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_all_changes_are_said_at_once() -> None:
    with pytest.raises(
        PluginError, match=r"json:one is not there .*; json:two is not there .*supported: 0\.5\.23"
    ):
        check_interfaces([Interface("json:one"), Interface("json:loads"), Interface("json:two")])


def test_a_version_outside_the_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "version", lambda _: "0.5.22")
    with pytest.raises(PluginError, match=r"sglang 0\.5\.22 is not supported; supported: 0\.5\.23"):
        check_version()


def test_every_algorithm_has_a_name_in_sglang() -> None:
    names = algorithm_names()
    assert names["SPECGRAMMAR_NGRAM"] == "ngram"
    assert all(name.isupper() for name in names)
