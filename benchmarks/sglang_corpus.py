"""sglang's n-gram corpus, run for real: its C++ and the Python around it, without installing sglang.

The C++ sources come out of the wheel and are built once into the user's cache, with the flags that sglang
itself gives. The worker's own methods prepare the lookup, pass the tokens and insert them.
"""

from __future__ import annotations

import logging
import os
import shutil
import typing
import zipfile
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import tvm_ffi
import tvm_ffi.cpp

from benchmarks.fetch import fetch_wheel
from benchmarks.sglang_source import REQUIREMENT, load_definitions

_CPP = "sglang/kernels/jit/csrc/"
_HEADERS = "sglang/kernels/jit/include/"
_FLAGS = ["-std=c++20", "-O3"]


class SglangRequest(SimpleNamespace):
    """What the worker reads of a request.

    Attributes:
        rid: its id.
        origin_input_ids_unpadded: the prompt, an array.
        output_ids: what was committed, an array; it grows.
    """

    def __init__(self, rid: str, prompt: Sequence[int], output: Sequence[int]) -> None:
        """A request with this prompt and output so far."""
        super().__init__(rid=rid, origin_input_ids_unpadded=array("i", prompt), output_ids=array("i", output))


class SglangNgram:
    """One NGRAM worker of sglang 0.5.23 without its model: lookup, links and insertion."""

    def __init__(self, match_type: str, num_nodes: int, trie_depth: int, breadth: int, capacity: int) -> None:
        """An empty corpus.

        Args:
            match_type: `BFS` (most recent first, the default there) or `PROB` (most frequent first).
            num_nodes: nodes of a tree, the root included.
            trie_depth: tokens of a match and of the path behind it together.
            breadth: most children of a node; 1 at least, behind the longest matches.
            capacity: nodes of the trie.

        Raises:
            RuntimeError: the source could not be fetched or built; the message is one line.
        """
        self._parts = _load()
        worker = object.__new__(self._parts.worker)
        worker.draft_token_num, worker.max_trie_depth = num_nodes, trie_depth
        # With a grammar in the batch, results are processed before the next draft, as here.
        worker.enable_overlap = False
        worker.ngram_corpus = self._parts.corpus(
            max_trie_depth=trie_depth,
            min_bfs_breadth=1,
            max_bfs_breadth=breadth,
            draft_token_num=num_nodes,
            match_type=match_type,
            capacity=capacity,
        )
        self._worker = worker
        self._num_nodes = num_nodes

    def warm(self, texts: Iterable[Sequence[int]]) -> None:
        """Insert whole texts and wait until they are in."""
        self._worker.ngram_corpus.batch_put([list(text) for text in texts])
        self._worker.ngram_corpus.synchronize()

    def look_up(self, requests: list[SglangRequest]) -> tuple[Any, Any]:
        """Token ids and ancestor mask of a tree per request, flat int64 arrays."""
        drafts, mask = self._worker._prepare_draft_tokens(_batch(requests))
        return drafts, mask

    def links(self, mask: Any, bs: int) -> tuple[Any, Any]:
        """First children and next siblings `[bs, N]`, as it derives them where a request has a grammar."""
        next_token, next_sibling = self._parts.derive_links(mask, bs, self._num_nodes)
        return next_token, next_sibling

    def insert(self, requests: list[SglangRequest]) -> None:
        """Hand over what each request ends with; a thread of the corpus inserts it."""
        self._worker.prev_token_ids, self._worker.prev_accept_lens = [], [0] * len(requests)
        self._worker._update_ngram_corpus(_batch(requests))

    def wait(self) -> None:
        """Until the thread has inserted everything."""
        self._worker.ngram_corpus.synchronize()


def _batch(requests: list[SglangRequest]) -> SimpleNamespace:
    return SimpleNamespace(reqs=requests, grammar_needs_sync=lambda: True)


@cache
def _load() -> SimpleNamespace:
    names: dict[str, Any] = {name: getattr(typing, name) for name in typing.__all__}
    names |= {"np": np, "torch": torch, "tvm_ffi": tvm_ffi, "logger": logging.getLogger("sglang")}
    names |= {"Iterable": Iterable, "Sequence": Sequence}
    names |= {"load_jit": _build, "cache_once": cache, "_MATCH_TYPE_MAP": {"BFS": 0, "PROB": 1}}
    names |= load_definitions(
        "kernels/ops/speculative/ngram_corpus.py", {"_to_csr", "get_ngram_corpus_cls"}, names
    )
    names |= load_definitions("srt/speculative/cpp_ngram/ngram_corpus.py", {"NgramCorpus"}, names)
    # Types that only annotations name, and a base class of which nothing is used.
    names |= dict.fromkeys(
        ("BaseSpecWorker", "EagleDraftWorkerBase", "GenerationBatchResult", "ScheduleBatch", "ServerArgs"),
        object,
    )
    names |= {"TpModelWorker": object}
    worker = load_definitions("srt/speculative/ngram_worker.py", {"NGRAMWorker", "_derive_tree_links"}, names)
    names["get_ngram_corpus_cls"]()
    return SimpleNamespace(
        worker=worker["NGRAMWorker"], derive_links=worker["_derive_tree_links"], corpus=names["NgramCorpus"]
    )


def _build(name: str, cpp_files: Sequence[str], header_only: bool) -> Any:
    """Compile the named sources, or take what was compiled before, and load the module.

    Raises:
        RuntimeError: there is no compiler, or it failed.
    """
    assert not header_only
    missing = [tool for tool in (os.environ.get("CXX", "c++"), "ninja") if shutil.which(tool) is None]
    if missing:
        raise RuntimeError(f"sglang's corpus needs {' and '.join(missing)} on the PATH to be compiled")
    wheel = Path(os.environ.get("SGLANG_WHEEL") or fetch_wheel(REQUIREMENT))
    cache_root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specgrammar"
    root = cache_root / REQUIREMENT.replace("==", "-")
    with zipfile.ZipFile(wheel) as archive:
        wanted = (f"{_CPP}{name}/", f"{_HEADERS}sgl_kernel/")
        for member in archive.namelist():
            if member.startswith(wanted) and not (root / member).exists():
                archive.extract(member, root)
    try:
        library = tvm_ffi.cpp.build(
            name,
            cpp_files=[str(root / _CPP / file) for file in cpp_files],
            extra_cflags=_FLAGS,
            extra_include_paths=[str(root / _HEADERS)],
            build_directory=str(root / "build"),
        )
    except RuntimeError as error:
        raise RuntimeError(
            f"sglang's corpus does not compile: {str(error).strip().splitlines()[-1]}"
        ) from error
    return tvm_ffi.load_module(library)
