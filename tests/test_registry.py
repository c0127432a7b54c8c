"""Plugins: discovery, the checks at load, and what each refusal says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest

from specgrammar import registry
from specgrammar.errors import ConfigError, PluginError
from specgrammar.protocols.grammar import BackendFacts
from specgrammar.registry import ADAPTERS, ALGORITHMS, BACKENDS, GROUPS, Group, create, find, plugins

FACTS = BackendFacts(None, True, frozenset(), frozenset())


class GoodBackend:
    api_version: ClassVar[int] = 1
    facts: ClassVar[BackendFacts] = FACTS

    def __init__(self, vocabulary: object, *, size: int = 3) -> None:
        if size < 0:
            raise ValueError("size is negative")
        if size == 13:
            raise RuntimeError("no such chip")
        size.to_bytes(8, "little")  # as a native library would take it
        self.vocabulary, self.size = vocabulary, size

    vocabulary: object = None

    def compile(self, spec: object) -> object:
        return spec

    def matcher(self, compiled: object) -> object:
        return compiled


class WrongVersion(GoodBackend):
    api_version = 2


class NoFacts(GoodBackend):
    facts = {"rollback": 3}  # type: ignore[assignment]  # noqa: RUF012  # wrong on purpose


class NoMatcher(GoodBackend):
    matcher = None  # type: ignore[assignment]  # wrong on purpose


class NotABackend:
    api_version = 1


NOT_CALLABLE = 3

_MEND = "mend the entry point in the pyproject.toml of my-dist and install it again"

FakePlugins = Callable[..., None]


@pytest.fixture
def fake_plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePlugins:
    """Installs entry points of made-up distributions, as `importlib.metadata` would report them."""

    def install(group: Group, *named: tuple[str, str, str]) -> None:
        found = []
        for name, target, distribution in named:
            info = tmp_path / f"{distribution}-1.0.dist-info"
            info.mkdir(exist_ok=True)
            extras = f"Provides-Extra: {name}\n" if distribution == "has-extras" else ""
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n{extras}"
            )
            entry_point = EntryPoint(name, target, group.name)
            vars(entry_point)["dist"] = Distribution.at(info)
            found.append(entry_point)
        monkeypatch.setattr(registry, "entry_points", lambda group: [ep for ep in found if ep.group == group])

    return install


def test_our_own_plugins_are_found_and_keep_to_their_protocols() -> None:
    names = {group.kind: {plugin.name for plugin in plugins(group)} for group in GROUPS}
    assert names["backend"] >= {"xgrammar", "llguidance"}
    assert names["algorithm"] >= {"none", "ngram", "chain"}
    assert names["adapter"] >= {"transformers"}
    for group in GROUPS:
        for plugin in plugins(group):
            assert callable(plugin.load())


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        PluginError, match=r"no backend is called 'xgramar'; did you mean xgrammar\? found: llg"
    ):
        find(BACKENDS, "xgramar")
    with pytest.raises(PluginError, match=r"'zzz'; found: llguidance, xgrammar \(.* install yours again"):
        find(BACKENDS, "zzz")


def test_a_name_of_another_kind_says_so() -> None:
    with pytest.raises(
        PluginError, match=r"no backend is called 'ngram'; did you mean the algorithm of that name\?"
    ):
        find(BACKENDS, "ngram")


def test_two_plugins_of_one_name_are_both_named(fake_plugins: FakePlugins) -> None:
    target = f"{__name__}:GoodBackend"
    fake_plugins(BACKENDS, ("mine", target, "first-dist"), ("mine", target, "second-dist"))
    with pytest.raises(PluginError, match=r"claimed twice.*first-dist 1\.0.*second-dist 1\.0"):
        find(BACKENDS, "mine")


def test_a_good_plugin_is_created_with_its_options(fake_plugins: FakePlugins) -> None:
    fake_plugins(BACKENDS, ("mine", f"{__name__}:GoodBackend", "my-dist"))
    backend = create(BACKENDS, "mine", "vocabulary", size=5)
    assert (backend.vocabulary, backend.size) == ("vocabulary", 5)


def test_unknown_and_impossible_options_are_refused(fake_plugins: FakePlugins) -> None:
    fake_plugins(BACKENDS, ("mine", f"{__name__}:GoodBackend", "my-dist"))
    with pytest.raises(ConfigError, match="no option 'sise'; it has: size"):
        create(BACKENDS, "mine", "vocabulary", sise=5)
    with pytest.raises(ConfigError, match="size is negative"):
        create(BACKENDS, "mine", "vocabulary", size=-1)
    with pytest.raises(
        ConfigError, match=r"'mine' refuses its options {'size': 1180591620717411303424}: int too big"
    ):
        create(BACKENDS, "mine", "vocabulary", size=2**70)
    with pytest.raises(
        PluginError, match=r"'mine' .*my-dist 1\.0\) cannot be made: RuntimeError: no such chip"
    ):
        create(BACKENDS, "mine", "vocabulary", size=13)
    with pytest.raises(ConfigError, match="no option 'vocabulary'"):
        create(BACKENDS, "mine", "vocabulary", vocabulary=1)


@pytest.mark.parametrize(
    ("member", "words"),
    [
        ("WrongVersion", ["api_version", "expected 1", "found 2"]),
        ("NoFacts", ["facts", "expected a BackendFacts", "rollback"]),
        ("NoMatcher", ["matcher", "expected a method", "found None"]),
        ("NotABackend", ["compile", "found nothing", "define compile"]),
        ("NOT_CALLABLE", ["a class or callable", "found 3"]),
        ("Missing", ["tests.test_registry has no 'Missing'", _MEND]),
        ("GoodBackand", ["has no 'GoodBackand'; did you mean 'GoodBackend'? mend", _MEND]),
        ("GoodBackend.compiler", ["has no 'GoodBackend.compiler'; did you mean 'compile'?", _MEND]),
    ],
)
def test_a_plugin_that_is_not_to_contract_is_refused_in_full(
    fake_plugins: FakePlugins, member: str, words: list[str]
) -> None:
    target = f"{__name__}:{member}"
    fake_plugins(BACKENDS, ("mine", target, "my-dist"))
    with pytest.raises(PluginError) as caught:
        find(BACKENDS, "mine").load()
    message = str(caught.value)
    assert all(word in message for word in ("backend 'mine'", target, "my-dist 1.0", *words)), message


@pytest.mark.parametrize(
    ("distribution", "hint"),
    [("has-extras", r"pip install 'has-extras\[mine\]'"), ("other", "pip install --upgrade other")],
)
def test_a_missing_dependency_says_how_to_install_it(
    fake_plugins: FakePlugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distribution: str, hint: str
) -> None:
    (tmp_path / "needs_something.py").write_text("import a_module_that_is_nowhere")
    monkeypatch.syspath_prepend(str(tmp_path))
    fake_plugins(ADAPTERS, ("mine", "needs_something:Thing", distribution))
    with pytest.raises(
        PluginError, match=rf"'a_module_that_is_nowhere' \(in .*/needs_something.py:1\): .*{hint}"
    ):
        find(ADAPTERS, "mine").load()


@pytest.mark.parametrize(
    ("target", "missing"),
    [
        ("no_such_plugin:Thing", "no_such_plugin"),
        ("no_such_plugin.backend:Thing", "no_such_plugin"),
        ("there.backnd:Thing", "there.backnd"),
        ("there.backnd.inner:Thing", "there.backnd"),
    ],
)
def test_an_entry_point_that_names_no_module_is_to_be_mended(
    fake_plugins: FakePlugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, missing: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    fake_plugins(ADAPTERS, ("mine", target, "my-dist"))
    mend = f"there is no module '{missing}'; {_MEND}, or, if it is not yours, pip install .*reinstall my-dist$"
    with pytest.raises(PluginError, match=rf"{target}, from my-dist 1.0\) cannot be imported: {mend}"):
        find(ADAPTERS, "mine").load()


@pytest.mark.parametrize("target", ["my plugin:Thing", "my-plugin:Thing", "plugin:", ""])
def test_an_entry_point_of_another_form_is_to_be_mended(fake_plugins: FakePlugins, target: str) -> None:
    fake_plugins(ADAPTERS, ("mine", target, "my-dist"))
    with pytest.raises(PluginError, match=f"the entry point is no 'module:Class'; {_MEND}"):
        find(ADAPTERS, "mine").load()


@pytest.mark.parametrize("source", ["import broken_plugin.gone", "import has_extras.gone"])
def test_a_missing_part_of_the_plugin_itself_says_where_it_is_imported(
    fake_plugins: FakePlugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "broken_plugin").mkdir()
    (tmp_path / "broken_plugin" / "__init__.py").write_text(f"\n{source}")
    monkeypatch.syspath_prepend(str(tmp_path))
    fake_plugins(ADAPTERS, ("mine", "broken_plugin:Thing", "has-extras"))
    hint = "has-extras itself lacks it; mend the import, or pip install --force-reinstall has-extras$"
    with pytest.raises(PluginError, match=rf"needs the module '.*' \(in .*/__init__.py:2\): {hint}"):
        find(ADAPTERS, "mine").load()


def test_a_plugin_that_raises_at_import_is_one_clear_error(
    fake_plugins: FakePlugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises_at_import.py").write_text("raise RuntimeError('no such chip')")
    monkeypatch.syspath_prepend(str(tmp_path))
    fake_plugins(ALGORITHMS, ("mine", "raises_at_import:Thing", "my-dist"))
    with pytest.raises(PluginError, match=r"RuntimeError: no such chip \(in .*raises_at_import.py:1\); mend"):
        find(ALGORITHMS, "mine").load()


class NoVocabulary(GoodBackend):
    def __getattribute__(self, name: str) -> Any:
        if name == "vocabulary":
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_what_a_plugin_makes_must_have_the_properties(fake_plugins: FakePlugins) -> None:
    fake_plugins(BACKENDS, ("mine", f"{__name__}:NoVocabulary", "my-dist"))
    with pytest.raises(PluginError, match="vocabulary: expected a property, found nothing"):
        create(BACKENDS, "mine", "vocabulary")


def test_our_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "specgrammar_xgrammar"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(PluginError, match=r"'xgrammar' \(in .*\): pip install 'specgrammar\[xgrammar\]'"):
        find(BACKENDS, "xgrammar").load()


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("specgrammar_xgrammar", "there is no module 'specgrammar_xgrammar'; mend the entry point"),
        (
            "specgrammar_xgrammar.backend",
            r"'specgrammar_xgrammar.backend' \(in .*\): specgrammar itself lacks it",
        ),
        ("specgrammar.grammar.native", r"'specgrammar.grammar.native' \(in .*\): specgrammar itself lacks it"),
    ],
)
def test_our_own_missing_module_says_to_reinstall(
    monkeypatch: pytest.MonkeyPatch, missing: str, told: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "specgrammar_xgrammar"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(PluginError, match=f"{told}.* pip install --force-reinstall specgrammar$"):
        find(BACKENDS, "xgrammar").load()


def test_listing_imports_nothing(fake_plugins: FakePlugins) -> None:
    fake_plugins(BACKENDS, ("mine", "a_module_that_is_nowhere:Thing", "my-dist"))
    listed: list[Any] = plugins(BACKENDS)
    assert [plugin.name for plugin in listed] == ["mine"]
