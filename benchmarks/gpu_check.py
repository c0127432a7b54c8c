"""Everything that needs a GPU, in one command: `python benchmarks/gpu_check.py [--json FILE]`.

Runs each kernel against its torch reference and times it, then generates with a small, randomly initialised
Llama-shaped model and a toy vocabulary. Needs no network and no model file. Where there is no CUDA device it
says so in one line and exits with 0.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = map(str, (ROOT, ROOT / "backends", ROOT / "adapters"))  # needs no installation


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    shape: str
    agrees: bool
    microseconds: float | None = None

    def row(self) -> tuple[str, str, str, str]:
        """As cells."""
        spent = "" if self.microseconds is None else f"{self.microseconds:.1f}"
        return self.name, self.shape, "yes" if self.agrees else "NO", spent


def timed(device: torch.device, call: Callable[[], object], repeats: int = 50) -> float:
    """Median microseconds from launch to done, warmed up."""
    spent = []
    for repeat in range(repeats + 5):
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if repeat >= 5:
            spent.append(1e6 * (time.perf_counter() - begin))
    return float(np.median(spent))


def check_apply(device: torch.device, num_nodes: int, vocab_size: int) -> Check:
    """`apply_rows` against boolean masking in torch."""
    from specgrammar.grammar.kernels import apply_rows

    generator = torch.Generator().manual_seed(0)
    num_words = (vocab_size + 31) // 32
    bitmask = torch.randint(
        -(2**31), 2**31, (num_nodes // 2, num_words), dtype=torch.int64, generator=generator
    )
    owners = torch.randperm(num_nodes, generator=generator)[: num_nodes // 2]
    bits = (bitmask[:, :, None] >> torch.arange(32)) & 1
    illegal = (bits.reshape(len(owners), -1)[:, :vocab_size] == 0).to(device)
    logits = torch.randn(num_nodes, vocab_size + 64, generator=generator).to(device)
    expected = logits.clone()
    on_device = owners.to(device)
    expected[on_device, :vocab_size] = expected[on_device, :vocab_size].masked_fill(illegal, -torch.inf)
    arguments = (bitmask.int().to(device), owners.int().to(device), vocab_size)
    apply_rows(logits, *arguments)
    agrees = torch.equal(logits, expected)
    shape = f"{len(owners)} of {num_nodes} x {vocab_size}"
    return Check("apply rows", shape, agrees, timed(device, lambda: apply_rows(logits, *arguments)))


def check_upload(device: torch.device, num_rows: int, vocab_size: int) -> Check:
    """A mask through the ring, pinned memory and the kernel."""
    from specgrammar.grammar.bitmask import BitmaskRing
    from specgrammar.grammar.mask import GrammarMask
    from specgrammar.grammar.rows import MaskRows
    from specgrammar.protocols.grammar import NodeStatus
    from specgrammar.runtime.device import device_for

    accelerator = device_for(str(device))
    ring = BitmaskRing(accelerator, (vocab_size + 31) // 32)
    logits = torch.zeros(num_rows, vocab_size, device=device)

    def once(word: int) -> None:
        slot = ring.acquire(num_rows)
        slot.rows[:num_rows] = word
        rows = MaskRows(slot.rows, num_rows, slot.owners)
        for node in range(num_rows):
            rows.take(node)
            rows.statuses[node] = NodeStatus.LIVE
        mask = GrammarMask(rows, slot, accelerator, vocab_size)
        mask.upload()
        mask.apply(logits)

    for word in range(1, 8):  # more steps than slots: a slot reused before its upload is done would show
        logits.zero_()
        once(word)
        legal = torch.isfinite(logits[:, :32]).cpu().tolist()
        if any(row != [bool(word >> bit & 1) for bit in range(32)] for row in legal):
            return Check("ring, upload, apply", f"{num_rows} rows", False)
    return Check("ring, upload, apply", f"{num_rows} x {vocab_size}", True, timed(device, lambda: once(-1), 20))


def check_links(device: torch.device, bs: int, num_nodes: int) -> Check:
    """The links kernel against the NumPy derivation."""
    from specgrammar.trees.convert import qlen_mask
    from specgrammar.trees.kernels import derive_tree_links_triton
    from specgrammar.trees.tree import HostTree

    rng = np.random.default_rng(0)
    parents = np.array([[-1, *(rng.integers(0, i) for i in range(1, num_nodes))] for _ in range(bs)]).ravel()
    tree = HostTree.from_parents(np.arange(bs + 1) * num_nodes, rng.integers(0, 99, bs * num_nodes), parents)
    mask = torch.from_numpy(qlen_mask(tree)).to(device)
    lengths = torch.arange(bs, device=device) + 7
    found = derive_tree_links_triton(mask, lengths)
    agrees = np.array_equal(found.retrieve_next_token.cpu().numpy().ravel(), tree.retrieve_next_token)
    agrees &= np.array_equal(found.retrieve_next_sibling.cpu().numpy().ravel(), tree.retrieve_next_sibling)
    agrees &= np.array_equal(
        found.positions.cpu().numpy().ravel(), np.repeat(np.arange(bs) + 7, num_nodes) + tree.depths()
    )
    spent = timed(device, lambda: derive_tree_links_triton(mask, lengths))
    return Check("tree links", f"{bs} x {num_nodes}", bool(agrees), spent)


def check_build(device: torch.device, bs: int, topk: int, num_steps: int, num_nodes: int) -> Check:
    """The kernel that builds draft trees against its torch reference."""
    from specgrammar.spec.eagle.build import build_trees_torch
    from specgrammar.spec.eagle.build_kernels import build_trees_triton
    from specgrammar.spec.eagle.growth import Growth

    ids = torch.arange(bs * topk, device=device).view(bs, topk)
    growth = Growth(ids, -torch.rand(bs, topk, device=device))
    for _ in range(num_steps - 1):
        growth.grow(ids[:, None].expand(-1, topk, -1), -torch.rand(bs, topk, topk, device=device))
    made = (ids[:, 0].contiguous(), *growth.candidates(), num_nodes)
    pairs = zip(vars(build_trees_triton(*made)).values(), vars(build_trees_torch(*made)).values(), strict=True)
    agrees = all(torch.equal(ours, right) for ours, right in pairs)
    spent = timed(device, lambda: build_trees_triton(*made))
    return Check("tree build", f"{bs} x {num_nodes} of {made[1].shape[1]}", agrees, spent)


def check_verify(device: torch.device, method: str, bs: int, num_nodes: int, vocab_size: int) -> Check:
    """Device verification against `accept`; on a GPU also as a graph, whose replay is timed."""
    from benchmarks.verify_scene import verify_scene
    from specgrammar.spec.verify import verify_triton
    from specgrammar.spec.verify_torch import verify_torch

    scene = verify_scene(device, method, bs, num_nodes, vocab_size)
    call: Callable[[], object] = partial(verify_triton, *scene[:5])
    repeats = 1
    agrees = scene.agrees(verify_triton(*scene[:5])) and scene.agrees(verify_torch(*scene[:5]))
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = verify_triton(*scene[:5])
        graph.replay()
        agrees &= scene.agrees(found)
        call, repeats = graph.replay, 50
    shape = f"{bs} x {num_nodes} x {vocab_size}, {scene.expected.accept_length.mean():.1f} accepted"
    return Check(f"verify, {method}", shape, agrees, timed(device, call, repeats))


def check_acceptance(device: torch.device, method: str, bs: int, num_nodes: int, vocab_size: int) -> Check:
    """The same from the host's arrays and back to them, as the step calls it, the copies included."""
    from benchmarks.verify_scene import verify_scene

    scene = verify_scene(device, method, bs, num_nodes, vocab_size)
    repeats = 50 if device.type == "cuda" else 1
    spent = timed(device, scene.step, repeats)
    return Check(f"accept, {method}", f"{bs} x {num_nodes} x {vocab_size}", scene.step_agrees(), spent)


def check_generation(device: torch.device, backend: str, max_new_tokens: int = 160) -> Check:
    """Whole generations; see `gpu_generation`."""
    from benchmarks.gpu_generation import generation

    return Check(f"generate, {backend}", *generation(device, backend, max_new_tokens))


def run(device: torch.device, *, small: bool) -> list[Check]:
    """All checks; `small` shapes are for the interpreter."""
    from benchmarks.verify_scene import METHODS

    vocab_size = 1000 if small else 128_256
    checks = [
        check_apply(device, 16, vocab_size),
        check_upload(device, 8 if small else 512, vocab_size),
        check_links(device, 2, 16),
        check_build(device, 2, 3, 3, 8),
        *(check_verify(device, method, 2, 4, vocab_size) for method in METHODS),
        *(check_acceptance(device, method, 2, 4, vocab_size) for method in METHODS),
    ]
    if not small:
        checks += [
            check_apply(device, 2048, vocab_size),
            check_links(device, 128, 16),
            check_links(device, 32, 64),
            *(check_build(device, bs, 4, 4, 16) for bs in (1, 128)),
            *(check_verify(device, method, bs, 16, vocab_size) for method in METHODS for bs in (1, 32)),
            *(check_acceptance(device, method, bs, 16, vocab_size) for method in METHODS for bs in (1, 32)),
        ]
    return checks + [check_generation(device, name) for name in ("xgrammar", "llguidance")]


def main() -> int:
    """Run the checks and print a table; 1 if any disagrees."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="also write the table as JSON")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_check: no CUDA device here; nothing was checked")
        return 0
    from specgrammar.cli.table import table

    checks = run(torch.device("cuda"), small=False)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(table(("check", "shape", "agrees", "us"), [check.row() for check in checks]))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(check) for check in checks], indent=1) + "\n")
    return int(not all(check.agrees for check in checks))


if __name__ == "__main__":
    sys.exit(main())
