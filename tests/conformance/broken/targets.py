"""Targets, each with one fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import ModelError
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Launched
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.outcome import Outcome
from specgrammar.testing.checks.target import TARGET_CHECKS
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.late_target import LateAdapter, LateTarget
from specgrammar.testing.toy_target import Ready, ToyAdapter, ToyTarget, toy_logits
from specgrammar.testing.toys import VOCABULARY
from specgrammar.trees.tree import DeviceTree, DraftTree, HostTree
from tests.conformance.broken.toy_targets import Full, Placed, Trusting
from tests.conformance.cases import Broken


class PlacedByNumber(Placed):
    def row(self, tokens: list[int], place: int) -> torch.Tensor:
        return toy_logits([*tokens[-2:], place])


class TakesTreesForChains(Trusting):
    def path(self, tree: HostTree, first: int, node: int) -> list[int]:
        tokens: list[int] = tree.draft_tokens[first + 1 : first + node + 1].tolist()
        return [token for token in tokens if token >= 0]


class SeesTheSiblingBefore(Trusting):
    def path(self, tree: HostTree, first: int, node: int) -> list[int]:
        *above, token = [*super().path(tree, first, node)] or [-1]
        siblings = np.flatnonzero(tree.retrieve_next_sibling[first : first + node] == node)
        return [*above, *tree.draft_tokens[first + siblings].tolist(), token] if node else []


class PaddingCounts(Placed):
    def path(self, tree: HostTree, first: int, node: int) -> list[int]:
        num_padding = int((tree.draft_tokens[first : first + node] < 0).sum())
        return [*[0] * num_padding, *super().path(tree, first, node)]


class PaddingHasNoRow(Trusting):
    def ready(self, logits: torch.Tensor, tree: DraftTree) -> Any:
        assert tree.host is not None
        return Ready(logits[torch.from_numpy(tree.host.draft_tokens >= 0)])


class KeepsTheWholeTree(Trusting):
    def kept(self, paths: AcceptedPaths) -> NDArray[np.int64]:
        assert self._tree is not None
        sizes = np.diff(self._tree.cu_nodes)
        nodes = np.arange(sizes.max())
        return np.where(nodes < sizes[:, None], nodes, -1) if len(paths.accept_length) else paths.accept_index


class KeepsTheLastWithoutBonus(Trusting):
    def kept(self, paths: AcceptedPaths) -> NDArray[np.int64]:
        return paths.accept_index


class KeepsOneTooFew(Trusting):
    def kept(self, paths: AcceptedPaths) -> NDArray[np.int64]:
        return replace(paths, bonus_token=np.full_like(paths.bonus_token, -1)).nodes_to_keep()


class KeepsTheFirstNodes(Trusting):
    def kept(self, paths: AcceptedPaths) -> NDArray[np.int64]:
        kept = paths.nodes_to_keep()
        return np.where(kept >= 0, np.arange(kept.shape[1]), -1)


class KeepsByRow(Trusting):
    """A request's cache is found by its row in the batch."""

    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        free = next(str(row) for row in range(99) if str(row) not in self.cache)
        self._rows = {**getattr(self, "_rows", {}), request_id: free}
        super().add(free, tokens)

    def key(self, row: int, request_id: str) -> str:  # noqa: ARG002  # the fault
        return str(row)

    def remove(self, request_id: str) -> None:
        super().remove(getattr(self, "_rows", {}).pop(request_id, ""))


class RowsInTheOrderOfIds(Trusting):
    def verify(self, batch: DecodeBatch, tree: DraftTree) -> Any:
        logits = super().verify(batch, tree).logits
        by_id = sorted(range(len(batch)), key=lambda b: batch.requests[b].request_id)
        return Ready(torch.cat([logits[tree.cu_nodes[b] : tree.cu_nodes[b + 1]] for b in by_id]))


class ForgetsNothing(Trusting):
    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        self.cache[request_id] = [*self.cache.get(request_id, []), *tokens[:-1]]

    def remove(self, request_id: str) -> None:
        """Left for later."""


class KnowsWhoLeaves(Trusting):
    def remove(self, request_id: str) -> None:
        del self.cache[request_id]


class FewColumns(Trusting):
    def ready(self, logits: torch.Tensor, tree: DraftTree) -> Any:  # noqa: ARG002  # see `Trusting`
        return Ready(logits[:, : VOCABULARY.vocab_size - 1])


class OneRowARequest(Trusting):
    def ready(self, logits: torch.Tensor, tree: DraftTree) -> Any:
        return Ready(logits[torch.from_numpy(tree.cu_nodes[1:] - 1)])


@dataclass
class HandsOutItsOwn(Trusting):
    """Forwards are remembered, and what is remembered is what the caller gets."""

    known: dict[bytes, torch.Tensor] = field(default_factory=dict)

    def ready(self, logits: torch.Tensor, tree: DraftTree) -> Any:  # noqa: ARG002  # see `Trusting`
        return Ready(self.known.setdefault(logits.numpy().tobytes(), logits))


class DrawsOnce(Trusting):
    def ready(self, logits: torch.Tensor, tree: DraftTree) -> Any:  # noqa: ARG002  # see `Trusting`
        class Once(Ready):
            def wait(self) -> torch.Tensor:
                logits, self.logits = self.logits, torch.zeros_like(self.logits)
                return logits

        return Once(logits)


class NeverFull(Full):
    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        Trusting.add(self, request_id, tokens)


class RaisesKeyErrors(Full):
    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        try:
            super().add(request_id, tokens)
        except ModelError as error:
            raise IndexError("slot 2 is out of range") from error


class KeepsTheRefused(Full):
    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        try:
            super().add(request_id, tokens)
        finally:
            self.cache.setdefault(request_id, [])


class KeepsTheRootOfFailedSteps(LateTarget):
    def commit(self, batch: DecodeBatch, paths: Launched[AcceptedPaths]) -> None:
        def found() -> AcceptedPaths:
            try:
                return paths.value()
            except Exception:
                roots = np.zeros((len(batch), 1), np.int64)
                return AcceptedPaths(roots, roots[:, 0], roots[:, 0])

        super().commit(batch, self.device.launch(found))


class ReadsPathsTooEarly(LateTarget):
    def commit(self, batch: DecodeBatch, paths: Launched[AcceptedPaths]) -> None:
        found = paths.value()
        super().commit(batch, Outcome(lambda: found))


class WaitsInVerify(LateTarget):
    def verify(self, batch: DecodeBatch, tree: DraftTree) -> Any:
        launched = super().verify(batch, tree)
        launched.wait()
        return launched


class IgnoresUnresolvedSteps(LateTarget):
    def verify(self, batch: DecodeBatch, tree: DraftTree) -> Any:
        return super().verify(replace(batch, unresolved=None), tree)


class ReadsTreesTooEarly(LateTarget):
    """As the host would, of whom the device's memory is none of the business."""

    def verify(self, batch: DecodeBatch, tree: DraftTree) -> Any:
        if tree.host is None:
            parts = (
                tree.device.draft_tokens,
                tree.device.retrieve_next_token,
                tree.device.retrieve_next_sibling,
            )
            copies = [part.clone() if isinstance(part, torch.Tensor) else part for part in parts]
            tree = replace(tree, device=DeviceTree(*copies))
        return super().verify(batch, tree)


def toy(target: Callable[[], ToyTarget]) -> Callable[[], ToyAdapter]:
    return lambda: ToyAdapter(target())


def late(target: Callable[[DelayedDevice], LateTarget]) -> Callable[[], LateAdapter]:
    def make() -> LateAdapter:
        device = DelayedDevice()
        return LateAdapter(device, target(device))

    return make


HONEST = {"trusting": toy(Trusting), "placed": toy(Placed), "full": toy(Full)}

ROWS, TREE, SIBLINGS, PADDING, BATCH, KEEPS, FAILED, REMOVE = (
    "a_row_of_logits_for_each_node",
    "a_tree_equals_its_paths",
    "siblings_do_not_see_each_other",
    "padding_changes_nothing",
    "the_batch_does_not_matter",
    "commit_keeps_the_accepted_path",
    "a_failed_step_keeps_nothing",
    "remove_forgets",
)
LONG, FULL, OVERWRITTEN, AT_ONCE, AGAIN, UNRESOLVED = (
    "what_is_too_long_is_refused",
    "a_full_cache_is_refused",
    "logits_may_be_overwritten",
    "verify_returns_at_once",
    "resampling_is_honest",
    "unresolved_steps_are_honest",
)
DIFFER = "the logits differ by up to"
NEXT = f"a step behind nodes .*{DIFFER}"

BROKEN_TARGETS = [
    Broken(fault, TARGET_CHECKS, make, f"check_{check}", finds)
    for fault, make, check, finds in (
        (
            "a column for an id is missing",
            toy(FewColumns),
            ROWS,
            "have 18 columns; expected one for each of 19",
        ),
        (
            "only the last node of a request has a row",
            toy(OneRowARequest),
            ROWS,
            "rows of the logits .* is 3; expected",
        ),
        ("positions are node numbers", toy(PlacedByNumber), TREE, f"node 2 of 'a', .*{DIFFER}"),
        ("a tree is taken for a chain", toy(TakesTreesForChains), TREE, f"node 2 of 'a', .*{DIFFER}"),
        (
            "a sibling is visible in the mask",
            toy(SeesTheSiblingBefore),
            SIBLINGS,
            "with a sibling .* the same node without it",
        ),
        ("padding moves what is behind it", toy(PaddingCounts), PADDING, f"in a tree with padding, .*{DIFFER}"),
        ("padding has no row", toy(PaddingHasNoRow), PADDING, "padding among them is 1; expected 2"),
        ("caches are found by the batch's rows", toy(KeepsByRow), BATCH, f"in a batch of .*{DIFFER}"),
        (
            "rows are in the order of ids",
            toy(RowsInTheOrderOfIds),
            BATCH,
            f"in a batch of .'c', 'b', 'a'.*{DIFFER}",
        ),
        ("rejected nodes stay in the cache", toy(KeepsTheWholeTree), KEEPS, NEXT),
        ("without a bonus token the last node stays", toy(KeepsTheLastWithoutBonus), KEEPS, NEXT),
        ("one node too few is kept", toy(KeepsOneTooFew), KEEPS, NEXT),
        ("the first nodes are kept, not the path's", toy(KeepsTheFirstNodes), KEEPS, NEXT),
        (
            "the root of a failed step is kept",
            late(KeepsTheRootOfFailedSteps),
            FAILED,
            "the cache is not the history",
        ),
        (
            "a removed request's cache is its successor's",
            toy(ForgetsNothing),
            REMOVE,
            f"which came 1 times before, .*{DIFFER}",
        ),
        ("ids that are unknown are not ignored", toy(KnowsWhoLeaves), REMOVE, "KeyError: 'never came'"),
        ("what is too long is taken", toy(NeverFull), LONG, "add of 65 tokens .* raised nothing"),
        ("a full cache takes one more", toy(NeverFull), FULL, "one more than the 2 requests .* raised nothing"),
        ("a full cache is a crash", toy(RaisesKeyErrors), FULL, r"raised IndexError: .*; expected ModelError"),
        (
            "a request that was refused holds its row",
            toy(KeepsTheRefused),
            FULL,
            "ModelError: no room for 'one more'",
        ),
        (
            "the caller gets the target's own memory",
            toy(HandsOutItsOwn),
            OVERWRITTEN,
            f"were overwritten.*{DIFFER}",
        ),
        ("logits can be read once", toy(DrawsOnce), AGAIN, "gave other logits when it was asked a second time"),
        (
            "`verify` waits for the forward",
            late(WaitsInVerify),
            AT_ONCE,
            "`verify` waited for is 4; expected 0",
        ),
        (
            "paths are read before they are found",
            late(ReadsPathsTooEarly),
            KEEPS,
            "'accept' was read before it was done",
        ),
        (
            "an unresolved step is ignored",
            late(IgnoresUnresolvedSteps),
            UNRESOLVED,
            "the cache is not the history",
        ),
        (
            "a tree is read before it is made",
            late(ReadsTreesTooEarly),
            UNRESOLVED,
            f"behind a step that is unresolved, .*{DIFFER}",
        ),
    )
]
