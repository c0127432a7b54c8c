"""The names that users may rely on, one a line: the program writes them.

Of a package that says what it exports (`__all__`) these names, of a module what it defines; of a class its
public members, too, with the parameters of its functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

MODULES = (
    "specgrammar",
    "specgrammar.errors",
    "specgrammar.protocols.abilities",
    "specgrammar.protocols.adapter",
    "specgrammar.protocols.drafter",
    "specgrammar.protocols.gate",
    "specgrammar.protocols.grammar",
    "specgrammar.protocols.spec",
    "specgrammar.protocols.staging",
    "specgrammar.protocols.target",
    "specgrammar.testing",
    "specgrammar.trees.tree",
)


def public_names() -> Iterator[str]:
    """All of them, sorted within their module."""
    for name in MODULES:
        module = import_module(name)
        exported = getattr(module, "__all__", None) or _defined_in(module)
        for member in sorted(exported):
            yield from _described(f"{name}.{member}", getattr(module, member))


def _defined_in(module: Any) -> list[str]:
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    constants = [
        name for name in vars(module) if name.isupper() and not name.startswith(("_", "TYPE_CHECKING"))
    ]
    return sorted({*own, *constants})


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield name
        members = {member for member in vars(value) if not member.startswith("_")}
        for member in sorted(members | set(getattr(value, "__dataclass_fields__", ()))):
            yield from _described(f"{name}.{member}", inspect.getattr_static(value, member, None))
        return
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    yield name + _parameters(function) if inspect.isfunction(function) else name


def _parameters(function: Any) -> str:
    shown: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
        if parameter.kind is parameter.KEYWORD_ONLY and not any(text.startswith("*") for text in shown):
            shown.append("*")
        shown.append(stars + parameter.name + ("" if parameter.default is parameter.empty else "=..."))
    return f"({', '.join(shown)})"


if __name__ == "__main__":
    print("\n".join(public_names()))
