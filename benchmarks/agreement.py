"""Do the peers give the same bits? Live rows over one compiled grammar, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from benchmarks.columns import Eager, Rings
from benchmarks.grammars import Grammars
from benchmarks.peers import Sglang, XGrammarWalk
from benchmarks.scenes import Scene
from benchmarks.vllm_peer import Vllm
from specgrammar.protocols.grammar import NodeStatus


def disagreements(scenes: Iterable[Scene], grammars: Grammars) -> tuple[int, list[str]]:
    """Compare our live rows with those of sglang's function and of xgrammar's native walk.

    All three walk matchers of one compiled grammar, ours. Rows of nodes that are not live follow each one's
    own convention and are not compared; that ours are live where they should be is the statuses' test.

    Args:
        scenes: their trees are compared, every request's by itself.
        grammars: of the vocabulary that the scenes were made for.

    Returns:
        How many live rows were compared, and one line for each tree that has a row with another bit.
    """
    ours, num_rows, found = Eager("xgrammar", Rings()), 0, []
    words = grammars.vocabulary.num_words
    for scene in scenes:
        mask = ours.builder(scene, grammars)()
        live = np.flatnonzero(mask.status == NodeStatus.LIVE)
        rows = mask.bitmask[mask.row_of_node[live]].copy()
        mask.discard()
        num_rows += len(live)
        for peer in (Sglang(our_grammar=True), XGrammarWalk(our_grammar=True)):
            theirs = peer.prepare(scene, grammars)().numpy()[live, :words]
            for request in np.unique(live[(rows != theirs).any(axis=1)] // scene.num_nodes).tolist():
                found.append(
                    f"{peer.name}: {scene.kind}, batch {scene.bs}, {scene.num_nodes} nodes, request {request}"
                )
    return num_rows, found


def disagreements_with_vllm(scenes: Iterable[Scene], grammars: Grammars, vllm: Vllm) -> tuple[int, list[str]]:
    """Like `disagreements`, for chains and vLLM's walk, which runs in its own process over the same grammar."""
    ours, num_rows, found = Eager("xgrammar", Rings()), 0, []
    for scene in scenes:
        theirs = vllm.digests(scene, grammars)
        mask = ours.builder(scene, grammars)()
        for request, digests in enumerate(theirs):
            rows = mask.row_of_node[scene.tree.request_slice(request)]
            live = [blake2b(mask.bitmask[row].tobytes()).hexdigest() for row in rows if row >= 0]
            num_rows += len(live)
            # Behind a stop token vLLM has one more row, which restricts nothing.
            if digests[: len(live)] != live or len(digests) - len(live) not in (0, 1):
                found.append(f"vllm: batch {scene.bs}, {scene.num_nodes} nodes, request {request}")
        mask.discard()
    return num_rows, found
