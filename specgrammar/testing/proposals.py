"""What a step's proposal has to be, clause by clause, once it has come to the host.

`Made` is what is looked at; each `judge_*` raises ConformanceError where one part of the contract is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import TreeError
from specgrammar.protocols.spec import Proposal as ProposalKind
from specgrammar.protocols.spec import RequestView, Topology
from specgrammar.testing.checks.base import expect
from specgrammar.trees.tree import DraftTree, HostTree
from specgrammar.trees.validate import validate_tree


@dataclass(frozen=True, eq=False)
class Made:
    """A proposal as it has come to the host.

    Attributes:
        step: of the batch that it was made for.
        requests: of that batch, in its order, with tokens that nobody changes.
        roots: the last committed token of each.
        tree: what `propose` returned.
        host: its nodes, wherever they were made.
        topology: the algorithm's.
        kind: the algorithm's `proposal`.
        vocab_size: of the target.
        show: tokens for people.
    """

    step: int
    requests: Sequence[RequestView]
    roots: Sequence[int]
    tree: DraftTree
    host: HostTree
    topology: Topology
    kind: ProposalKind
    vocab_size: int
    show: Callable[[Sequence[int]], str]

    def name(self, request: int) -> str:
        """A request for messages."""
        return f"step {self.step}, request {self.requests[request].request_id!r}"


Judge = Callable[[Made], None]


def judge_place(made: Made) -> None:
    """The tree is of this step and these requests in this order; each begins with its last committed token."""
    tree, ids = made.tree, [view.request_id for view in made.requests]
    expect(tree.step == made.step, f"the tree carries step {tree.step}; it was made for step {made.step}")
    expect(tree.bs == len(ids), f"step {made.step}: the tree has {tree.bs} requests; the batch has {ids}")
    found = made.host.draft_tokens[made.host.cu_nodes[:-1]].tolist()
    for request, (root, expected) in enumerate(zip(found, made.roots, strict=True)):
        expect(
            root == expected,
            f"{made.name(request)}: the tree's root is {made.show([root])}; its last committed token is "
            f"{made.show([expected])} (the batch's order is {ids})",
        )


def judge_form(made: Made) -> None:
    """Arrays, links and ids are those of a tree."""
    try:
        validate_tree(made.host, None, made.vocab_size)
    except TreeError as error:
        expect(False, f"step {made.step}: the tree is malformed: {error}")


def judge_size(made: Made) -> None:
    """No tree is larger or deeper than declared or than the request needs; siblings differ."""
    topology, host, parents, depths = made.topology, made.host, made.host.parents(), made.host.depths()
    for request, view in enumerate(made.requests):
        nodes, name = host.request_slice(request), made.name(request)
        num_nodes = nodes.stop - nodes.start
        expect(
            num_nodes <= topology.max_nodes,
            f"{name} has {num_nodes} nodes; the topology says at most {topology.max_nodes}, root included",
        )
        deepest = int(depths[nodes].max())
        expect(
            deepest <= topology.max_depth,
            f"{name} has a path of {deepest} draft tokens; the topology says at most {topology.max_depth}",
        )
        expect(
            deepest <= view.max_draft_tokens,
            f"{name} has a path of {deepest} draft tokens; its max_draft_tokens is {view.max_draft_tokens}",
        )
        children: dict[int, list[int]] = {}
        real = host.draft_tokens[nodes] >= 0
        for token, parent in zip(host.draft_tokens[nodes][real].tolist(), parents[nodes][real], strict=True):
            children.setdefault(int(parent), []).append(token)
        for parent, tokens in children.items():
            told = f"{name}: node {parent} has the children {made.show(tokens)}"
            is_chain = topology.kind == "chain"
            expect(not is_chain or len(tokens) == 1, f"{told}, siblings; the topology is a chain")
            is_drawn = made.tree.sampled is not None
            expect(is_drawn or len(set(tokens)) == len(tokens), f"{told}: siblings that are not distinct")


def judge_nodes(made: Made) -> None:
    """What the tree says of its nodes is of the right kind: score, source, and whether they were drawn."""
    tree, num_nodes = made.tree, made.host.num_nodes
    if tree.score is not None:
        score = _array("score", tree.score, np.float32, num_nodes, made.step)
        wrong = (score < 0) | (score > 1)
        expect(not wrong.any(), f"step {made.step}: score has {score[wrong][:1]}; expected [0, 1], or NaN")
    if tree.source is not None:
        source = _array("source", tree.source, np.int16, num_nodes, made.step)
        wrong = (source < 0) | (source >= len(tree.sources))
        expect(
            not wrong.any(),
            f"step {made.step}: source has {source[wrong][:1]}; expected indices into sources {tree.sources}",
        )


def judge_draws(made: Made) -> None:
    """Nodes that were drawn name a row of q that is a distribution and may give their token."""
    sampled, step = made.tree.sampled, made.step
    if sampled is None:
        return
    is_point = made.kind is ProposalKind.POINT
    expect(not is_point, f"step {step}: the tree has `sampled`, but the algorithm's proposal is POINT")
    row_of_node = _array("sampled.row_of_node", sampled.row_of_node, np.int64, made.host.num_nodes, step)
    q = sampled.q
    is_q = isinstance(q, torch.Tensor) and q.dtype == torch.float32 and q.dim() == 2
    expect(is_q, f"step {step}: sampled.q is {_kind(q)}; expected a float32 tensor [rows, columns]")
    expect(
        row_of_node.max(initial=-1) < len(q) and row_of_node.min(initial=0) >= -1,
        f"step {step}: row_of_node is {row_of_node.tolist()}; expected rows of a q of {len(q)}, or -1",
    )
    roots = row_of_node[made.host.cu_nodes[:-1]]
    expect((roots == -1).all(), f"step {step}: roots have rows {roots.tolist()} of q; a root is never drawn")
    probs = q.cpu().numpy()
    for node in np.flatnonzero((row_of_node >= 0) & (made.host.draft_tokens >= 0)).tolist():
        row, token = probs[row_of_node[node]], int(made.host.draft_tokens[node])
        request = int(np.searchsorted(made.host.cu_nodes, node, side="right")) - 1
        name = f"{made.name(request)}: row {row_of_node[node]} of q, of node {node} of the flat tree,"
        is_law = bool((row >= 0).all()) and abs(float(row.sum(dtype=np.float64)) - 1) < 1e-3
        expect(is_law, f"{name} sums to {row.sum(dtype=np.float64):.4f}; expected 1, and nothing negative")
        expect(token < len(row), f"{name} has {len(row)} columns, but its token is {made.show([token])}")
        expect(
            row[token] > 0, f"{name} gives its token {made.show([token])} probability 0: it was not drawn there"
        )


JUDGES: tuple[Judge, ...] = (judge_form, judge_place, judge_size, judge_nodes, judge_draws)


def judging(*judges: Judge) -> Judge:
    """Several judges as one."""

    def judge(made: Made) -> None:
        for one in judges:
            one(made)

    return judge


def _array(what: str, found: object, dtype: type[np.generic], size: int, step: int) -> NDArray[Any]:
    is_right = isinstance(found, np.ndarray) and found.dtype == dtype and found.shape == (size,)
    expect(is_right, f"step {step}: {what} is {_kind(found)}; expected {np.dtype(dtype)} [{size}], one a node")
    assert isinstance(found, np.ndarray)
    return found


def _kind(found: object) -> str:
    if isinstance(found, np.ndarray | torch.Tensor):
        return f"{found.dtype} {list(found.shape)}"
    return type(found).__name__
