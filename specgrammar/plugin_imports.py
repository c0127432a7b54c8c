"""Import what an entry point names, and say what is wrong with it: each kind of failure has its own remedy.

An author has to mend an entry point or an import, a user to install what is missing. Who reads the message may
be either, so that it says where the fault is and what each of them can do.
"""

from __future__ import annotations

import re
import traceback
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any

from specgrammar.errors import PluginError

_VALUE = re.compile(r"[\w.]+\s*(:\s*[\w.]+\s*)?(\[.*\]\s*)?$")


def load_entry_point(entry_point: EntryPoint, where: str) -> Any:
    """What an entry point names.

    Args:
        entry_point: of a plugin.
        where: the plugin for messages.

    Raises PluginError that says what cannot be imported, where, and how to mend it.
    """
    if not _VALUE.match(entry_point.value):
        raise PluginError(f"{where}: the entry point is no 'module:Class'; {_mend(entry_point)}")
    try:
        found = import_module(entry_point.module)
    except ModuleNotFoundError as error:
        raise PluginError(f"{where} {_missing(entry_point, error)}") from error
    except Exception as error:
        what = f"{type(error).__name__}: {error}{_at(error)}"
        raise PluginError(
            f"{where} cannot be imported: {what}; mend it there, or reinstall or upgrade {_owner(entry_point)}"
        ) from error
    for name in entry_point.attr.split(".") if entry_point.attr else ():
        if not hasattr(found, name):
            alike = get_close_matches(name, dir(found), n=1)
            hint = f"did you mean {alike[0]!r}? " if alike else ""
            raise PluginError(
                f"{where}: {entry_point.module} has no {entry_point.attr!r}; {hint}{_mend(entry_point)}"
            )
        found = getattr(found, name)
    return found


def _missing(entry_point: EntryPoint, error: ModuleNotFoundError) -> str:
    """A module that is not there: the entry point's own, one of the plugin's own, or somebody else's."""
    missing, owner = error.name or str(error), _owner(entry_point)
    place = _at(error)
    if not place and f"{entry_point.module}.".startswith(f"{missing}."):
        return f"cannot be imported: there is no module {missing!r}; {_mend(entry_point)}"
    needs = f"needs the module {missing!r}{place}: "
    if missing.partition(".")[0] in _own_packages(entry_point):
        return f"{needs}{owner} itself lacks it; mend the import, or pip install --force-reinstall {owner}"
    dist = entry_point.dist
    extras = (dist.metadata.get_all("Provides-Extra") or []) if dist else []
    if entry_point.name in extras:
        return f"{needs}pip install '{owner}[{entry_point.name}]'"
    return f"{needs}install what {owner} depends on, e.g. pip install --upgrade {owner}"


def _mend(entry_point: EntryPoint) -> str:
    """What an author does about a wrong entry point, and what a user does about a broken installation."""
    owner = _owner(entry_point)
    return (
        f"mend the entry point in the pyproject.toml of {owner} and install it again, or, if it is not yours, "
        f"pip install --force-reinstall {owner}"
    )


def _at(error: Exception) -> str:
    """The line of the plugin's that an import came to; empty if it came to none."""
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] != "importlib"
        and frame.f_globals is not globals()
    ]
    return f" (in {lines[-1]})" if lines else ""


def _owner(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist else "its distribution"


def _own_packages(entry_point: EntryPoint) -> set[str]:
    """Import packages that come with the plugin, as far as its distribution's entry points and name say."""
    dist = entry_point.dist
    own = {entry_point.module, *(entry.module for entry in (dist.entry_points if dist else ()))}
    if dist:
        own.add(dist.name.replace("-", "_"))
    return {module.partition(".")[0] for module in own}
