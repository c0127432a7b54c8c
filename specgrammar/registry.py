"""Plugins: found by entry points, loaded by name, checked against their protocol before they are used.

A third party's backend, algorithm or adapter is found exactly as our own are:

    [project.entry-points."specgrammar.backends"]
    mine = "my_package:MyBackend"
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from specgrammar.checks import show
from specgrammar.errors import ConfigError, PluginError, SpecGrammarError
from specgrammar.plugin_imports import load_entry_point
from specgrammar.protocols.adapter import ADAPTER_API_VERSION
from specgrammar.protocols.grammar import BACKEND_API_VERSION, BackendFacts
from specgrammar.protocols.spec import ALGORITHM_API_VERSION, SpecAlgorithm

if TYPE_CHECKING:
    from specgrammar.config import Config


@dataclass(frozen=True)
class Group:
    """A kind of plugin: its entry point group and what its members must be.

    Attributes:
        kind: the word for it in messages.
        name: the entry point group.
        api_version: the version that a plugin must declare.
        methods: members that must be callable.
        values: members that must be an instance of a type.
        properties: members that must exist on what the plugin makes.
    """

    kind: str
    name: str
    api_version: int
    methods: tuple[str, ...]
    values: Mapping[str, type]
    properties: tuple[str, ...] = ()


BACKENDS = Group(
    "backend",
    "specgrammar.backends",
    BACKEND_API_VERSION,
    methods=("compile", "matcher"),
    values={"facts": BackendFacts},
    properties=("vocabulary",),
)
ALGORITHMS = Group(
    "algorithm",
    "specgrammar.algorithms",
    ALGORITHM_API_VERSION,
    methods=("make_producer",),
    values={},
    properties=("topology", "proposal"),
)
ADAPTERS = Group("adapter", "specgrammar.adapters", ADAPTER_API_VERSION, methods=("load",), values={})
GROUPS = (BACKENDS, ALGORITHMS, ADAPTERS)


@dataclass(frozen=True)
class Plugin:
    """An entry point, not loaded yet."""

    group: Group
    name: str
    target: str
    distribution: str
    entry_point: EntryPoint

    @property
    def where(self) -> str:
        """For messages: kind, name, target and distribution."""
        return f"{self.group.kind} {self.name!r} ({self.target}, from {self.distribution})"

    def load(self) -> Callable[..., Any]:
        """Import the plugin and check it; raises PluginError with what is wrong and how to mend it."""
        factory = load_entry_point(self.entry_point, self.where)
        check_members(factory, self.group, self.where)
        return factory  # type: ignore[no-any-return]  # checked to be callable by check_members


def plugins(group: Group) -> list[Plugin]:
    """All plugins of a group, sorted by name; nothing is imported. The same name may come up twice."""
    found: dict[tuple[str, str, str], Plugin] = {}  # one distribution may be on the path twice
    for entry_point in entry_points(group=group.name):
        dist = entry_point.dist
        where = f"{dist.name} {dist.version}" if dist else "an unknown distribution"
        key = (entry_point.name, entry_point.value, where)
        found[key] = Plugin(group, *key, entry_point)
    return sorted(found.values(), key=lambda plugin: (plugin.name, plugin.distribution))


def find(group: Group, name: str) -> Plugin:
    """The plugin of a name; raises PluginError if there is none, or more than one."""
    named = [plugin for plugin in plugins(group) if plugin.name == name]
    if len(named) == 1:
        return named[0]
    if named:
        claims = " and ".join(f"{plugin.target} from {plugin.distribution}" for plugin in named)
        raise PluginError(f"{group.kind} {name!r} is claimed twice, by {claims}; uninstall one of them")
    known = sorted({plugin.name for plugin in plugins(group)})
    raise PluginError(f"no {group.kind} is called {name!r}; {_instead(group, name, known)}")


def _instead(group: Group, name: str, known: list[str]) -> str:
    """What may have been meant by a name, what there is, and why a new one may not be there."""
    others = [other.kind for other in GROUPS if other is not group and name in {p.name for p in plugins(other)}]
    meant = [f"the {kind} of that name" for kind in others] or get_close_matches(name, known)
    if meant:
        return f"did you mean {' or '.join(meant)}? found: {', '.join(known)}"
    found = ", ".join(known) or "none; is specgrammar installed?"
    return f"found: {found} (entry points are read from what is installed: install yours again after a change)"


def create(group: Group, name: str, *args: Any, **options: Any) -> Any:
    """Load a plugin and call it with options; unknown ones are refused by name.

    Args:
        group: the kind.
        name: the plugin's name.
        args: what the protocol passes (a backend's vocabulary).
        options: what a user configured.

    Raises:
        PluginError: there is no such plugin, or it does not keep to its protocol, or fails on its own.
        ConfigError: an option is unknown or has an impossible value.
    """
    if group is ALGORITHMS and "+" in name:
        return _merged(name.split("+"), options)
    plugin = find(group, name)
    factory = plugin.load()
    known = option_names(factory, len(args))
    unknown = sorted(set(options) - known)
    if unknown:
        raise ConfigError(
            f"{group.kind} {name!r} has no option {', '.join(map(repr, unknown))}; "
            f"it has: {', '.join(sorted(known)) or 'none'}"
        )
    try:
        made = factory(*args, **options)
    except SpecGrammarError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{group.kind} {name!r} refuses its options {show(options)}: {error}") from error
    except Exception as error:
        raise PluginError(f"{plugin.where} cannot be made: {type(error).__name__}: {error}") from error
    for member in group.properties:
        if not hasattr(made, member):
            raise _refusal(plugin.where, member, "a property", "nothing", f"define {member}")
    return made


def algorithm_of(config: Config) -> SpecAlgorithm:
    """The algorithm that a configuration names, under its budget; raises as `create` does.

    One that has an option `budget` keeps to it by itself; any other is cut from outside, as a merged one.
    """
    name, options = config.algorithm, dict(config.algorithm_options)
    if config.budget is None:
        made: SpecAlgorithm = create(ALGORITHMS, name, **options)
        return made
    if "+" in name or "budget" in option_names(find(ALGORITHMS, name).load()):
        if "budget" in options:
            raise ConfigError(
                "config: both budget and the algorithm's option 'budget' are set; drop the option"
            )
        return create(ALGORITHMS, name, **options, budget=config.budget)  # type: ignore[no-any-return]  # checked
    alone: SpecAlgorithm = create(ALGORITHMS, name, **options)
    num_drafts = alone.topology.max_nodes - 1
    if num_drafts < 1:
        raise ConfigError(f"config: budget = {config.budget!r}, but algorithm {name!r} drafts nothing; drop it")
    from specgrammar.spec.merged.algorithm import merged

    return merged([(name, alone)], num_draft_tokens=num_drafts, budget=config.budget)


def _merged(names: Sequence[str], options: Mapping[str, Any]) -> Any:
    """Several algorithms as one; an option that is named like one of them is a table of that one's options."""
    from specgrammar.spec.merged.algorithm import merged

    if len(set(names)) < len(names):
        raise ConfigError(f"algorithm {'+'.join(names)!r} names a part twice; each may be there once")
    own = {key: value for key, value in options.items() if key not in names}
    parts = []
    for name in names:
        table = options.get(name, {})
        if not isinstance(table, Mapping):
            raise ConfigError(
                f"algorithm option {name!r} = {show(table)}; expected a table of {name}'s options"
            )
        parts.append((name, create(ALGORITHMS, name, **table)))
    return merged(parts, **own)


def option_names(factory: Callable[..., Any], num_positional: int = 0) -> set[str]:
    """The options that a factory takes, behind its positional parameters."""
    parameters = list(inspect.signature(factory).parameters.values())[num_positional:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name for parameter in parameters if parameter.kind in named}


def check_members(factory: Any, group: Group, where: str) -> None:
    """Check a factory against its group; raises PluginError naming member, expected, found and fix."""
    if not callable(factory):
        fix = "name the class in the entry point"
        raise _refusal(where, "entry point", "a class or callable", repr(factory), fix)
    version = getattr(factory, "api_version", None)
    if version != group.api_version or not isinstance(version, int):
        fix = "declare it as a class attribute, or install a plugin made for this version of specgrammar"
        raise _refusal(where, "api_version", repr(group.api_version), repr(version), fix)
    for name in group.methods:
        found = repr(getattr(factory, name)) if hasattr(factory, name) else "nothing"
        if not callable(getattr(factory, name, None)):
            raise _refusal(where, name, "a method", found, f"define {name} as specgrammar.protocols says")
    for name, kind in group.values.items():
        found = repr(getattr(factory, name)) if hasattr(factory, name) else "nothing"
        if not isinstance(getattr(factory, name, None), kind):
            fix = f"set {name} = {kind.__name__}(...) as a class attribute"
            raise _refusal(where, name, f"a {kind.__name__}", found, fix)


def _refusal(where: str, member: str, expected: str, found: str, fix: str) -> PluginError:
    return PluginError(f"{where}: {member}: expected {expected}, found {found}; {fix}")
