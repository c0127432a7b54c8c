"""How much the objects of an engine hold, by where they are held.

Containers count with their number of elements, arrays and tensors with their bytes. What grows shows here also
where the process's memory does not tell, because it uses again what others gave back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from specgrammar.protocols.grammar import Vocabulary

_PACKAGES = ("specgrammar", "benchmarks", "tests")
"""Objects of classes from elsewhere (locks, native libraries) are not looked into."""


def footprint(root: object) -> dict[str, int]:
    """Elements of containers and bytes of arrays that can be reached from an object by its attributes.

    Keys are `Class.attribute`, with `[]` for each container around; all objects of a class count together. Each
    container counts once, by the first way to it. A vocabulary never changes and is left out.
    """
    sizes: Counter[str] = Counter()
    seen: dict[int, object] = {}  # keeps what was seen alive, so that no id is used again
    pending: deque[tuple[str, object]] = deque([(type(root).__name__, root)])
    while pending:
        path, value = pending.popleft()
        if isinstance(value, (np.ndarray, torch.Tensor)):
            sizes[path] += value.nbytes
        elif isinstance(value, (str, bytes, Vocabulary, type)) or id(value) in seen:
            continue
        elif isinstance(value, (dict, list, tuple, set, frozenset, deque, bytearray)):
            seen[id(value)] = value
            sizes[path] += len(value)
            elements = [*value.values(), *value] if isinstance(value, dict) else value
            pending.extend((f"{path}[]", element) for element in elements if not isinstance(element, int))
        elif type(value).__module__.split("_")[0].split(".")[0] in _PACKAGES:
            seen[id(value)] = value
            name = type(value).__name__
            pending.extend((f"{name}.{attribute}", held) for attribute, held in _attributes(value))
    return dict(sizes)


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield name, getattr(value, name)
