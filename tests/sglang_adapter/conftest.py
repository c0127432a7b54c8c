"""What sglang imports besides itself and is not here: stand-ins for packages that need a GPU, tests only."""

from __future__ import annotations

import os
import sys
import types
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

INSTALLED = find_spec("sglang") is not None
NEEDS_SGLANG = "needs sglang 0.5.23 in an environment of its own: make test-sglang"


class _EmptyModules(MetaPathFinder, Loader):
    """torchvision, whose modules only image models read: every name in it is None."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] != "torchvision":
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        def no_name(name: str) -> None:
            if name.startswith("__"):
                raise AttributeError(name)

        module.__dict__["__getattr__"] = no_name


def _stand_in() -> None:
    from transformers.utils.import_utils import is_torchvision_available

    is_torchvision_available()  # cached: it stays False for transformers
    sys.meta_path.insert(0, _EmptyModules())
    kernels, speculative = types.ModuleType("sgl_kernel"), types.ModuleType("sgl_kernel.speculative")
    kernels.__path__ = []
    speculative.__dict__["reconstruct_indices_from_tree_mask"] = None  # we do not derive links on a device
    sys.modules |= {kernels.__name__: kernels, speculative.__name__: speculative}


if INSTALLED:
    os.environ.setdefault("SGLANG_PLUGINS", "specgrammar")
    _stand_in()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they say that this machine has no GPU
        import_module("sglang.srt.speculative.ngram_worker")
