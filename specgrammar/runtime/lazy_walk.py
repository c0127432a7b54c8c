"""The walk of lazy masking: each request along the target's own choices, with the grammar beside it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.grammar.draw_on_cpu import can_draw_on_cpu
from specgrammar.grammar.draws import Draws, short_id_dtype
from specgrammar.grammar.native_follow import Followed, follow_natively
from specgrammar.grammar.session import GrammarSession, refuses
from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.masking import LaunchedStep, MaskParts
from specgrammar.runtime.open_status import open_status
from specgrammar.runtime.readback import Readback
from specgrammar.runtime.second_draws import SecondDraws
from specgrammar.spec.sampler import greedy_tokens, sample_tokens, top_tokens
from specgrammar.spec.sampling_table import SamplingTable
from specgrammar.spec.walk import path_logprobs, rows_of, to_host
from specgrammar.trees.paths import Paths
from specgrammar.trees.tree import HostTree

NUM_BEST = 96
"""Tokens of each row that come back from a device with memory of its own. Of SmolLM2-135M-Instruct's illegal
greedy choices under the schemas of 40 BFCL prompts 98 % have a legal one among the next 95, 48 % among 7."""

_NO_TOKEN = -1
_PADDING, _ENDED, _LIVE, _FREE = map(
    int, (NodeStatus.PADDING, NodeStatus.ENDED, NodeStatus.LIVE, NodeStatus.FREE)
)


class LazyWalk:
    """The walks of one step over unmasked logits.

    Attributes:
        num_cut: paths that ended although a child carries their second draw.
    """

    def __init__(
        self,
        tree: HostTree,
        logits: torch.Tensor,
        status: NDArray[np.int8],
        step: LaunchedStep,
        guarded: Sequence[bool],
        second: SecondDraws,
        readback: Readback,
        parts: MaskParts,
    ) -> None:
        """Draw what is drawn at once.

        Args:
            tree: of all requests.
            logits: `[num_nodes, columns]`; rows of requests that truncate are masked already.
            status: int8 `[num_nodes]`: that of requests that truncate; the others' are written here.
            step: the sessions, the sampling parameters, and whether log-probabilities are wanted.
            guarded: for each request, whether the grammar is asked; the others' rows are masked.
            second: fills rows and brings them to the logits.
            readback: memory for what is drawn at once.
            parts: the vocabulary, and threads to share the requests among.
        """
        self.num_cut: int = 0
        self._tree, self._logits, self._second, self._step = tree, logits, second, step
        self._status, self._parts, self._guarded, self._readback = status, parts, guarded, readback
        self._paths = Paths(tree)
        self._refused: list[int] = []  # requests whose last node is to be drawn from again
        self._draws: Draws | None = self.draw_at_once(tree)

    def draw_at_once(self, tree: HostTree) -> Draws | None:
        """Every node's token; where a second draw is a trip to the device, its best tokens as well.

        None where nodes are better drawn one by one: on the CPU a draw with noise costs more than a call.
        """
        table = SamplingTable.of([request.sampling for request in self._step.batch.requests])
        if self._second.at_once:
            if not table.greedy.all():
                return None
            tokens = greedy_tokens(self._logits).to(torch.int32)
            logits = self._logits if can_draw_on_cpu(self._logits) else None
            return Draws(to_host(tokens[:, None]), np.ones(tree.num_nodes, np.int32), logits)
        request = np.repeat(np.arange(tree.bs), np.diff(tree.cu_nodes))
        table = table.take(request)
        num_tokens = np.array([request.num_tokens for request in self._step.batch.requests], np.int64)
        positions = num_tokens[request] + tree.depths()
        best, num_sure = top_tokens(self._logits, table, positions, NUM_BEST)
        ids = best.to(short_id_dtype(self._logits.shape[1]))
        best_on_host, num_on_host = self._readback.read(ids, num_sure.to(torch.int32))
        draws = Draws(best_on_host, num_on_host)
        others = np.flatnonzero((draws.num_sure == 0) | ~np.array(self._guarded)[request])
        if others.size:
            rows = rows_of(self._logits, others)
            draws.best[others, 0] = to_host(sample_tokens(rows, table.take(others), positions[others]))
            draws.num_sure[others] = 0
        return draws

    def run(self) -> None:
        """Walk until every path has ended."""
        followed = self._follow_natively()
        self._write_status(followed.others)
        for request in followed.others:
            root = self._paths.roots[request]
            if self._status[root] in (_LIVE, _FREE):
                self._walk(request, root, False)
        for request, node, is_refused, has_row in followed.stuck:
            if has_row:
                self._refused.append(request)
            else:
                self._walk(request, node, is_refused)
        for request, token in zip(self._refused, self._draw_again(self._refused), strict=True):
            self._paths.choose(request, token)
            self.num_cut += self._child(request, self._paths.last(request), token) >= 0

    def _follow_natively(self) -> Followed:
        """Walk as far as native code can, which writes statuses as well."""
        if self._draws is None or self._step.want_logprobs:
            everybody = list(range(self._tree.bs))
            self._paths.begin(everybody)
            return Followed(everybody, [])
        asked: Sequence[GrammarSession | None] = self._step.sessions
        if not all(self._guarded):
            asked = [s if is_guarded else None for s, is_guarded in zip(asked, self._guarded, strict=True)]
        second, workers = self._second, self._parts.workers
        rows = None if second.at_once else second.rows
        followed = follow_natively(asked, self._tree, self._draws, self._paths, self._status, rows, workers)
        if second.at_once:
            second.num_rows += followed.num_rows
        return followed

    def _write_status(self, requests: Sequence[int]) -> None:
        """What the nodes of some requests are, unless they truncate: then it was written with their rows."""
        guarded = [request for request in requests if self._guarded[request]]
        if not guarded:
            return
        status, tree = open_status(self._tree, self._parts.vocabulary), self._tree
        for request in guarded:
            nodes, is_over = tree.request_slice(request), self._step.sessions[request].finish is not None
            self._status[nodes] = _PADDING if is_over else status[nodes]

    def paths(self) -> AcceptedPaths:
        """What the walks found."""
        paths = self._paths
        longest = max([1, *paths.lengths.tolist()])
        logprobs = self._logprobs(longest) if self._step.want_logprobs else None
        return AcceptedPaths(paths.nodes[:, :longest], paths.num_accepted, paths.bonus, logprobs)

    def _walk(self, request: int, node: int, is_refused: bool) -> None:
        """Walk on from a node; `is_refused`: none of the draws that are known there is legal."""
        paths, is_guarded = self._paths, self._guarded[request]
        while True:
            if is_refused:
                nodes, num_taken, tokens = [node], 0, [_NO_TOKEN]
            else:
                nodes, tokens = self._along_the_draws(request, node)
                num_taken = self._follow(request, node, tokens)
            paths.extend(request, nodes[:num_taken], tokens[:num_taken])
            if num_taken < len(tokens):
                paths.extend(request, [nodes[num_taken]], [_NO_TOKEN])
                if is_guarded:
                    paths.choose(request, self._second_choice(request, nodes[num_taken], is_refused))
            child = self._child(request, paths.last(request), int(paths.bonus[request]))
            if child < 0:
                return
            if self._status[child] == _ENDED:
                paths.extend(request, [child], [_NO_TOKEN])  # nothing follows a stop token
                return
            node, is_refused = child, False

    def _follow(self, request: int, node: int, tokens: Sequence[int]) -> int:
        """Move the grammar along the draws from a node on; returns how many of them it takes."""
        if not self._guarded[request]:
            return len(tokens) - (tokens[-1] < 0)
        session = self._step.sessions[request]
        if self._step.want_logprobs:
            self._second.fill(session, node)
        return session.follow(tokens)

    def _along_the_draws(self, request: int, node: int) -> tuple[list[int], list[int]]:
        """The nodes that the draws lead through from a node, and the token drawn at each.

        Only the node itself if nodes are drawn one by one, or their rows are wanted on the way.
        """
        if self._draws is None:
            return [node], self._draw([request], [node], [int(self._paths.lengths[request])])
        nodes, tokens = [node], [self._draws.drawn(node)]
        if self._step.want_logprobs:
            return nodes, tokens
        while (child := self._child(request, nodes[-1], tokens[-1])) >= 0 and self._status[child] != _ENDED:
            nodes.append(child)
            tokens.append(self._draws.drawn(child))
        return nodes, tokens

    def _second_choice(self, request: int, node: int, is_refused: bool) -> int:
        """The masked draw at the last node, whose first draw is illegal; -1 if there is none, or not yet."""
        session = self._step.sessions[request]
        if self._draws is not None and not is_refused:
            best = self._draws.next_best(node)
            if (index := session.follow_first(best)) >= 0:
                return best[index]
        if session.finish is not None:
            return _NO_TOKEN
        if not self._step.want_logprobs:
            self._second.fill(session, node)
        if not self._second.offers(node):
            return _NO_TOKEN
        if self._second.at_once:
            (token,) = self._draw_again([request])
            if token >= 0 and not session.follow([token]):
                session.fail(refuses(token, len(session.output) + int(self._paths.lengths[request]) - 1))
            return token if session.finish is None else _NO_TOKEN
        self._refused.append(request)
        return _NO_TOKEN

    def _draw_again(self, requests: Sequence[int]) -> list[int]:
        """Draws at the last nodes of some requests, from their masked rows.

        Where log-probabilities are wanted, all rows that were filled are masked.
        """
        if not requests and not self._step.want_logprobs:
            return []
        nodes = [self._paths.last(request) for request in requests]
        depths = [int(self._paths.lengths[request]) - 1 for request in requests]
        are_greedy = all(self._step.batch.requests[request].sampling.greedy for request in requests)
        if are_greedy and not self._step.want_logprobs and can_draw_on_cpu(self._logits):
            drawn = self._second.draw_greedily()
            tokens = [drawn[node] for node in nodes]
        else:
            self._second.apply()
            tokens = self._draw(requests, nodes, depths) if requests else []
        return [
            token if self._step.sessions[request].finish is None else _NO_TOKEN
            for request, token in zip(requests, tokens, strict=True)
        ]

    def _draw(self, requests: Sequence[int], nodes: Sequence[int], depths: Sequence[int]) -> list[int]:
        """What the target draws at some nodes, as their rows are now."""
        views = [self._step.batch.requests[request] for request in requests]
        table = SamplingTable.of([view.sampling for view in views])
        positions = np.array([view.num_tokens for view in views], np.int64) + np.array(depths)
        if self._logits.device.type == "cpu":  # a few rows: copying them would cost more than the calls
            return [
                int(sample_tokens(self._logits[node : node + 1], table.take(one), positions[one]))
                for node, one in zip(nodes, np.arange(len(nodes))[:, None], strict=True)
            ]
        rows = rows_of(self._logits, np.array(nodes))
        return list(to_host(sample_tokens(rows, table, positions)).tolist())

    def _child(self, request: int, node: int, token: int) -> int:
        """The first child that may be accepted and carries the token, -1 for none."""
        draft_tokens, next_token, next_sibling = self._links
        root = self._paths.roots[request]
        child: int = next_token[node] if token >= 0 else -1
        while child >= 0 and (draft_tokens[root + child] != token or self._status[root + child] < _ENDED):
            child = next_sibling[root + child]
        return root + child if child >= 0 else -1

    @cached_property
    def _links(self) -> tuple[memoryview[int], ...]:
        """Tokens, first children and next siblings, of which single ones are read faster than of arrays."""
        tree = self._tree
        links = tree.draft_tokens, tree.retrieve_next_token, tree.retrieve_next_sibling
        return tuple(part.data for part in links)

    def _logprobs(self, longest: int) -> NDArray[np.float32]:
        paths = self._paths
        request, depth = np.nonzero(np.arange(longest) < paths.lengths[:, None])
        nodes = self._tree.cu_nodes[request] + paths.nodes[request, depth]
        tokens, shape = paths.tokens[request, depth], (self._tree.bs, longest)
        return path_logprobs(self._logits, (request, depth), nodes, tokens, shape)
