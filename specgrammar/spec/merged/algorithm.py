"""`merged`: an algorithm made of others, as in `forced+ngram`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from specgrammar.checks import check_int, refused
from specgrammar.errors import ConfigError
from specgrammar.protocols.spec import (
    ALGORITHM_API_VERSION,
    ProducerContext,
    Proposal,
    SpecAlgorithm,
    Topology,
    TreeProducer,
)


@dataclass(frozen=True)
class MergedAlgorithm:
    """One tree of the drafts of several algorithms, each named as in `--algorithm`.

    What two of them propose is one node. They draft behind each other, too, where they can
    (`SupportsContinuation`): a lookup behind what the grammar forces, and what is forced behind that. One that
    cannot drafts from the root, where nothing is drafted yet. Illegal drafts are cut before they are verified,
    and the likeliest of the others fill the budget.

    Attributes:
        parts: the names and the algorithms, `forced` among them or not.
        num_draft_tokens: most draft tokens of a request's tree.
        budget: draft tokens of a step and request on average: a number, or `auto` for as many as pay for their
            verification, by the measured costs of this machine's steps.
    """

    parts: tuple[tuple[str, SpecAlgorithm], ...]
    num_draft_tokens: int = 16
    budget: int | Literal["auto"] = "auto"
    api_version: Literal[1] = field(default=ALGORITHM_API_VERSION, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.parts:
            raise refused("merged: parts", self.parts, "at least one algorithm")
        for name, algorithm in self.parts:
            if algorithm.proposal is not Proposal.POINT:
                raise ConfigError(
                    f"merged: {name!r} draws its drafts; drawn drafts keep their place and may not be joined "
                    "or cut, so take its greedy drafts, or use it alone"
                )
            if getattr(algorithm, "budget", None) is not None:
                raise ConfigError(
                    f"merged: {name!r} has a budget of its own, and the tree has one for all of them: set that "
                    "one (--budget), or use the algorithm alone"
                )
        check_int("merged: num_draft_tokens", self.num_draft_tokens, 1)
        if self.budget != "auto":
            check_int("merged: budget", self.budget, 1)

    @property
    def topology(self) -> Topology:
        """Trees of the root and at most `num_draft_tokens` nodes, which may all lie on one path."""
        return Topology("tree", 1 + self.num_draft_tokens, self.num_draft_tokens)

    @property
    def proposal(self) -> Proposal:
        """POINT: nodes are chosen by their chances."""
        return Proposal.POINT

    def supports_grammar_overlap(self) -> bool:
        """False: the grammar is asked before the launch."""
        return False

    def make_producer(self, context: ProducerContext) -> TreeProducer:
        """Build the producers of all parts, and what merges their drafts."""
        from specgrammar.spec.merged.producer import MergedProducer

        producers = [(name, algorithm.make_producer(context)) for name, algorithm in self.parts]
        return MergedProducer(self, producers, context)


def merged(parts: Sequence[tuple[str, SpecAlgorithm]], **options: object) -> MergedAlgorithm:
    """The algorithm of some parts; raises ConfigError for options that it has not."""
    known = {"num_draft_tokens", "budget"}
    if unknown := sorted(set(options) - known):
        raise ConfigError(f"merged: no option {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return MergedAlgorithm(tuple(parts), **options)  # type: ignore[arg-type]  # checked when it is made
