"""Speculative algorithms: where draft trees come from.

An algorithm is a frozen value: its fields are its options. It says what it needs and what it makes, and
builds the `TreeProducer` that proposes trees step by step. Ask an algorithm what it can do; never which one
it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from specgrammar.protocols.drafter import CausalDrafter
    from specgrammar.protocols.grammar import Vocabulary
    from specgrammar.protocols.staging import Device
    from specgrammar.spec.sampling import SamplingParams
    from specgrammar.trees.tree import DraftTree, HostTree

ALGORITHM_API_VERSION: Literal[1] = 1
"""What an algorithm built against this file declares as its `api_version`."""

Needs = Literal["nothing", "history", "grammar"]
"""What a producer reads before it proposes.

`nothing`: device state only, the previous step may be unresolved. `history`: the committed token ids.
`grammar`: the grammar's state behind them, so the grammar advances before the proposal and that time is
exposed.
"""


class Proposal(IntEnum):
    """How a node's token was chosen, which decides what verification is exact for it."""

    POINT = 0
    """Chosen, not drawn (ngram, forced, top-k of a head): verified against the target alone."""
    SAMPLED = 1
    """Drawn independently from a stated q: may be verified by rejection sampling."""


@dataclass(frozen=True)
class Topology:
    """The trees that an algorithm may produce, per request.

    Attributes:
        kind: `chain` if no node ever has a sibling.
        max_nodes: most nodes of a tree, the root included (1 + draft tokens).
        max_depth: most draft tokens on one path.
    """

    kind: Literal["chain", "tree"]
    max_nodes: int
    max_depth: int


class DraftGrammar(Protocol):
    """A request's grammar, as producers may ask it; it is left as it was found (`GrammarSession`)."""

    def fill(self, tree: HostTree, bitmask: NDArray[np.int32]) -> NDArray[np.int8]:
        """Fill the rows of one request's tree: what may follow each node.

        Args:
            tree: its root is the request's last token.
            bitmask: C-contiguous, writeable int32 `[>= num_nodes, num_words]`.

        Returns:
            The `NodeStatus` of each node, int8 `[num_nodes]`; only a LIVE node's row restricts.
        """
        ...

    def validate(self, drafts: Sequence[int]) -> int:
        """How many tokens of a chain of drafts behind the last one are legal, a stop token included."""
        ...

    def forced_text(self, drafts: Sequence[int] = ()) -> bytes:
        """The longest text that has to follow a chain of drafts; empty where there is a choice."""
        ...


@dataclass(frozen=True)
class RequestView:
    """What a producer or a target sees of one request at one step.

    Attributes:
        request_id: unique among the requests in flight.
        tokens: prompt and output so far, the last one being the root of the tree to draft. Read only.
        num_prompt_tokens: how many of them are the prompt.
        max_draft_tokens: no path needs more draft tokens than this (`max_new_tokens` is near); at least 0.
        sampling: how the target samples for it.
        grammar: where it stands, for producers that need the `grammar`; None for others, and for a request that
            no grammar restricts yet.
        num_tokens: length of `tokens` when the view was made. The sequence may be the ledger's own, which
            grows when a later result is resolved; positions count from here.

    Where the batch has an unresolved step, what that step commits is behind `tokens`, not in it.
    """

    request_id: str
    tokens: Sequence[int]
    num_prompt_tokens: int
    max_draft_tokens: int
    sampling: SamplingParams
    grammar: DraftGrammar | None = None
    num_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_tokens", len(self.tokens))


@dataclass(frozen=True, eq=False)
class CommittedTokens:
    """What a step commits, as the device's stream knows it; on the device.

    The end of a request is not looked for here: of a request that ends, the ledger may keep fewer.

    Attributes:
        tokens: int64 `[bs, width]`, accepted draft tokens, then the bonus token, -1 behind them.
        num_tokens: int64 `[bs]`, how many; 0 where the step failed for a request or it took no part.
    """

    tokens: torch.Tensor
    num_tokens: torch.Tensor


class Unresolved(Protocol):
    """The step before a batch's, whose result is on the device's stream and not yet on the host."""

    @property
    def max_tokens(self) -> int:
        """The most that any request of it can have committed: the width of `value().tokens`."""
        ...

    @property
    def takes_part(self) -> Sequence[bool]:
        """For each request of the batch, whether it was in that step; else it has just joined."""
        ...

    def value(self) -> CommittedTokens:
        """What it committed, in the batch's order, for work that is launched now: never blocks.

        Raises what that step raised.
        """
        ...


@dataclass(frozen=True)
class DecodeBatch:
    """The requests of one step.

    Attributes:
        step: its number, stamped on drafts and results.
        requests: in row order.
        unresolved: the step before, where the host does not have its result yet. Only for producers that need
            `nothing` and targets that say `supports_unresolved`; None for all others.
    """

    step: int
    requests: tuple[RequestView, ...]
    unresolved: Unresolved | None = None

    def __len__(self) -> int:
        return len(self.requests)

    def resolved(self) -> DecodeBatch:
        """The same batch with the histories as they are now, once the ledger has the step before."""
        if self.unresolved is None:
            return self
        return DecodeBatch(self.step, tuple(replace(request) for request in self.requests))


@dataclass(frozen=True)
class Commit:
    """What one step committed for one request; exactly this moved history and grammar."""

    request_id: str
    tokens: tuple[int, ...]
    num_draft_tokens: int
    num_accepted: int
    finished: bool


class TreeProducer(Protocol):
    """Proposes one draft tree per request and step. Called from one thread."""

    @property
    def needs(self) -> Needs:
        """What must be resolved before `propose` is called."""
        ...

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """Draft for every request of the batch.

        Returns a tree with `bs == len(batch)` in the batch's order and `step == batch.step`. Node 0 of each
        request is its root, `tokens[-1]`; a request without a draft has the root alone. No path is longer
        than the request's `max_draft_tokens`, no request has more nodes than the topology says. For chains:
        `DraftTree.from_host(batch.step, HostTree.from_chains([[view.tokens[-1], *drafts], ...]))`.

        Where `batch.unresolved` is there (only if this producer needs `nothing`), the host does not know the
        roots: they are behind what that step commits, and the tree is made by launched work (`DraftTree.made`).
        A tree of the host's is dropped as stale then.
        """
        ...

    def observe(self, commits: Sequence[Commit]) -> None:
        """Learn what was committed, once per request and step, in order; `finished` ends the request."""
        ...


@runtime_checkable
class SupportsContinuation(Protocol):
    """An ability of a producer: it drafts behind drafts that nobody has verified."""

    def continue_behind(
        self, requests: Sequence[RequestView], drafts: Sequence[Sequence[int]], num_tokens: int
    ) -> list[list[int]]:
        """One chain per request behind its history and its drafts, empty where nothing is known.

        Nothing is learnt from the drafts. Called behind a `propose` of the same step for these requests.

        Args:
            requests: as that `propose` saw them.
            drafts: a chain per request, behind its last committed token.
            num_tokens: most tokens of a chain that is returned.
        """
        ...


def _no_drafter(name: str) -> CausalDrafter:
    from specgrammar.errors import ConfigError

    raise ConfigError(
        f"the algorithm asks for the draft model {name!r}, but this engine loads none; "
        "use prompt lookup, or an adapter that provides `load_drafter`"
    )


@dataclass(frozen=True)
class ProducerContext:
    """What an engine gives to an algorithm that builds its producer.

    Attributes:
        vocabulary: the target's.
        max_batch_size: most requests in one `propose`.
        device: where drafts may be made, on the stream that the target's forwards are launched on.
        load_drafter: loads a causal draft model by path or name, on that device.
        target: the engine's own target, for algorithms that read its features; None where there is none.
        agree: makes a number that one replica measured everybody's; called by all of them in the same order.
    """

    vocabulary: Vocabulary
    max_batch_size: int
    device: Device
    load_drafter: Callable[[str], CausalDrafter] = field(default=_no_drafter)
    target: Any = None
    agree: Callable[[int], int] = lambda number: number


class SpecAlgorithm(Protocol):
    """A speculative algorithm: a frozen value whose fields are its options.

    The entry point in `specgrammar.algorithms` is a callable `(**options) -> SpecAlgorithm`, usually a frozen
    dataclass. Invalid options raise ConfigError there, not in the decode loop.

    An algorithm may also have `supports_grammar_overlap() -> bool`: whether nothing of an unresolved step is
    read before the launch. Where the member is absent the answer is False.
    """

    @property
    def api_version(self) -> Literal[1]:
        """`ALGORITHM_API_VERSION`; readable on the factory itself, before anything is made."""
        ...

    @property
    def topology(self) -> Topology:
        """The trees that it produces."""
        ...

    @property
    def proposal(self) -> Proposal:
        """How its nodes' tokens are chosen; a tree may mix, then this is SAMPLED."""
        ...

    def make_producer(self, context: ProducerContext) -> TreeProducer:
        """Build the producer; loads models, so it may take long."""
        ...


def supports_grammar_overlap(algorithm: object) -> bool:
    """Ask an algorithm, with False where it does not say (and for an answer that is not a bool)."""
    member = getattr(algorithm, "supports_grammar_overlap", None)
    return member() is True if callable(member) else False
