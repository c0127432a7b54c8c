"""What is put behind sglang's `build_grammar_vocab_mask`: rows of live nodes alone, each tree walked once.

The rows are sglang's own. It leaves rows of nodes that are rejected, ended or unrestricted all ones; here they
do not exist, so that they are neither filled nor uploaded nor applied, and their logits stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import ConfigError
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.staging import Device
from specgrammar.runtime.device import device_for
from specgrammar.trees.tree import HostTree
from specgrammar_sglang.gates import is_walked_by_us, our_grammar, session_of
from specgrammar_sglang.grammar import SglangGrammar


class SglangTree(Protocol):
    """sglang's `GrammarTree`."""

    def resolve(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """First children, next siblings and tokens, `[bs, N]` on the host; waits for their copy."""
        ...


class SglangRequest(Protocol):
    """What is read of sglang's `Req`."""

    grammar: Any


class SglangMask:
    """What sglang's workers apply, like its own `GrammarMask`.

    Attributes:
        grammar: one of the batch's grammar objects.
        vocab_mask: the rows as sglang lays them out, int32 `[bs * N, words]` on the host; for inspection, until
            `apply`.
    """

    def __init__(self, grammar: Any, mask: GrammarMask) -> None:
        """Wrap a mask that was uploaded."""
        self.grammar = grammar
        self._mask = mask

    def apply(self, logits: torch.Tensor) -> None:
        """Set what the grammars forbid to -inf, in place, behind the upload.

        Args:
            logits: float `[bs * N, columns]`.
        """
        self._mask.apply(logits)

    @property
    def vocab_mask(self) -> torch.Tensor:
        """See the attributes."""
        row_of_node = self._mask.row_of_node
        rows = np.full((len(row_of_node), self._mask.bitmask.shape[1]), -1, np.int32)
        live = row_of_node >= 0
        rows[live] = self._mask.bitmask[row_of_node[live]]
        return torch.from_numpy(rows)

    def __del__(self) -> None:
        """A mask that was never applied (the step failed) gives its memory back."""
        self._mask.discard()


def build_mask(
    original: Callable[..., Any],
    *,
    reqs: Sequence[SglangRequest],
    tree: SglangTree,
    sampling_info: Any,
    device: Any,
    barrier: Callable[[], None] | None,
) -> Any:
    """The AROUND hook of `build_grammar_vocab_mask`.

    Batches with a grammar that is not ours, or that `gates.is_walked_by_us` denies, and devices that our masks
    do not know, are left to sglang's own function.

    Args:
        original: that function.
        reqs: the requests in row order.
        tree: the draft trees.
        sampling_info: the batch's; the mask of an earlier step is taken out of it, as sglang does.
        device: where the logits are.
        barrier: moves the grammars over what the step before committed; called first.
    """
    grammars = [req.grammar for req in reqs]
    ours = next((found for grammar in grammars if (found := our_grammar(grammar)) is not None), None)
    if ours is None or not all(map(is_walked_by_us, grammars)):
        return original(reqs=reqs, tree=tree, sampling_info=sampling_info, device=device, barrier=barrier)
    maker = _maker_for(str(device), ours)
    if maker is None:
        return original(reqs=reqs, tree=tree, sampling_info=sampling_info, device=device, barrier=barrier)
    if barrier is not None:
        barrier()
    sessions = [session_of(grammar, ours.vocabulary) for grammar in grammars]
    mask = maker.build(sessions, tree)
    for grammar, session in zip(grammars, sessions, strict=True):
        if session is not None and session.error is not None and (failed := our_grammar(grammar)) is not None:
            failed.session.fail(session.error)
    sampling_info.grammar_mask = None
    return SglangMask(ours, mask)


class MaskMaker:
    """Persistent memory and threads for the masks of one device and vocabulary."""

    def __init__(self, device: Device, vocabulary: Vocabulary, *, thread_safe: bool) -> None:
        """Allocate nothing yet; `thread_safe` is whether requests' trees may be walked side by side."""
        self._device, self._vocabulary = device, vocabulary
        self._ring = BitmaskRing(device, vocabulary.num_words)
        self._workers = FillWorkers() if thread_safe else None
        self._ended = _ended_session(vocabulary)

    def build(self, sessions: Sequence[GrammarSession | None], tree: SglangTree) -> GrammarMask:
        """Walk every request's tree and upload the rows; None stands for a request whose grammar has ended."""
        mask = build_grammar_mask(
            [session or self._ended for session in sessions],
            _OnHost(tree),
            self._ring,
            self._device,
            self._vocabulary,
            workers=self._workers,
        )
        mask.upload()
        return mask


class _OnHost:
    """A tree of sglang's as one of ours (`protocols.staging.StagedTree`)."""

    def __init__(self, tree: SglangTree) -> None:
        self._tree = tree

    def resolve(self) -> HostTree:
        """Wait for it. Nodes that nothing leads to, with which sglang fills its trees up, are padding."""
        parts = [part.to(torch.int64).numpy() for part in self._tree.resolve()]
        next_token, next_sibling, tokens = parts
        if (unlinked := _unlinked(next_token, next_sibling)).any():
            next_token, next_sibling, tokens = (np.where(unlinked, -1, part) for part in parts)
        return HostTree.from_dense(tokens, next_token, next_sibling)


def _unlinked(*links: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which nodes `[bs, N]` no root leads to; a round more for each level of such nodes."""
    lost = np.zeros(links[0].shape, np.bool_)
    while True:
        linked = np.zeros_like(lost)
        linked[:, :1] = True
        for link in links:
            request, node = np.nonzero((link >= 0) & ~lost)
            linked[request, link[request, node]] = True
        if np.array_equal(lost, ~linked):
            return lost
        lost = ~linked


_makers: dict[tuple[str, int], MaskMaker | None] = {}
"""By device and vocabulary, which hashes too slowly to be a key itself; a maker keeps its vocabulary alive."""


def _maker_for(device: str, grammar: SglangGrammar) -> MaskMaker | None:
    """The maker for a device and the vocabulary of a grammar; None for a device that our masks do not know."""
    key = device, id(grammar.vocabulary)
    if key not in _makers:
        try:
            made = MaskMaker(device_for(device), grammar.vocabulary, thread_safe=grammar.thread_safe)
        except ConfigError:
            _makers[key] = None
        else:
            _makers[key] = made
    return _makers[key]


def _ended_session(vocabulary: Vocabulary) -> GrammarSession:
    session = GrammarSession(vocabulary)
    session.abort()
    return session
