"""Builds the native libraries (C++) beside the Python code; a wheel with them is for one platform.

Where there is no C++ compiler the package is built without them: everything works, and grammars are walked by
Python. `python hatch_build.py` builds them in place, where the package is installed as editable.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_HEADERS = "specgrammar/native"
_LIBRARIES = {
    "specgrammar/native/libspecgrammar.so": "specgrammar/native/*.cpp",
    "backends/specgrammar_llguidance/libspecgrammar_llguidance.so": "backends/specgrammar_llguidance/*.cpp",
    "backends/specgrammar_xgrammar/libspecgrammar_xgrammar.so": "backends/specgrammar_xgrammar/*.cpp",
}
# Linked into them, since the machine that runs a wheel may have an older one.
_STATIC = (
    ["-static-libstdc++", "-static-libgcc"] if sys.platform == "linux" else ["-undefined", "dynamic_lookup"]
)
_FLAGS = ["-std=c++20", "-O3", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror", *_STATIC]


class NativeLibraries(BuildHookInterface):
    """Compiles before a wheel (or an editable install) is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say that the wheel is for this platform."""
        try:
            built = build(Path(self.root))
        except (OSError, subprocess.CalledProcessError, ImportError) as error:
            self.app.display_warning(f"built without native libraries, grammars are walked by Python: {error}")
            return
        build_data["artifacts"] += [f"/{path}" for path in built]
        if version != "editable":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"


def build(root: Path) -> list[str]:
    """Compile all libraries into place; a library that is in use stays whole. Returns their paths."""
    import tvm_ffi.libinfo

    compiler = shlex.split(os.environ.get("CXX", "g++"))
    includes = [f"-I{_HEADERS}", f"-I{tvm_ffi.libinfo.find_include_path()}"]
    for path, pattern in _LIBRARIES.items():
        sources = sorted(str(source.relative_to(root)) for source in root.glob(pattern))
        new = f"{path}.{os.getpid()}.new"
        try:
            subprocess.run([*compiler, *_FLAGS, *includes, *sources, "-o", new], cwd=root, check=True)
            os.replace(root / new, root / path)
        finally:
            (root / new).unlink(missing_ok=True)
    return list(_LIBRARIES)


if __name__ == "__main__":
    print("\n".join(build(Path(__file__).parent)))
