"""A target in use: requests come, trees are verified, paths are kept, and what was seen is compared.

What every node shows is compared with what an ordinary request shows that begins with the same tokens: that one
is added, and its root alone is verified, when all others have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
import torch

from specgrammar.protocols.adapter import EngineAdapter
from specgrammar.protocols.spec import DecodeBatch, RequestView, Unresolved
from specgrammar.protocols.staging import Launched
from specgrammar.protocols.target import AcceptedPaths, TargetModel
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.checks.base import CheckSkipped, Story, expect, same
from specgrammar.trees.tree import DraftTree, HostTree

MakeAdapter = Callable[[], EngineAdapter]
"""What target checks take. Loading is slow: it may return the same adapter each time."""

TOLERANCE = 1e-3
"""Logits are equal up to this part of the largest; float32 needs far less, give more for half precision."""

MAX_DRAFT_TOKENS = 4

LEAST_LENGTH = 64
"""A target that takes no longer requests than this is not checked."""


@dataclass(frozen=True)
class Nodes:
    """One request's tree: tokens and parents, the root first; padding has token -1 and parent -1."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def path(self, node: int) -> list[int]:
        """The nodes from the root down to this one, both included."""
        return [*(self.path(self.parents[node]) if node else []), node]

    def tokens_to(self, node: int) -> list[int]:
        """The draft tokens of a path, without the root."""
        return [self.tokens[i] for i in self.path(node)[1:]]


@dataclass(frozen=True)
class Seen:
    """What a check saw at a node.

    Attributes:
        tokens: the history and the path to the node.
        logits: float32 `[vocab_size]` on the host.
        where: for people.
    """

    tokens: tuple[int, ...]
    logits: torch.Tensor
    where: str


@dataclass
class Play:
    """A target in use; as a context manager it lets all requests leave at the end."""

    make: MakeAdapter
    story: Story = field(default_factory=Story)

    def __post_init__(self) -> None:
        """Make the adapter."""
        self.adapter: EngineAdapter = self.make()
        self.target: TargetModel = self.adapter.target
        self.histories: dict[str, list[int]] = {}
        self.step: int = -1
        self._seen: list[Seen] = []
        self._expected: dict[tuple[int, ...], torch.Tensor] = {}
        limit = self.target.max_length
        if limit is not None and limit < LEAST_LENGTH:
            raise CheckSkipped(f"max_length is {limit}; these checks need {LEAST_LENGTH}")
        vocabulary = self.adapter.vocabulary
        hidden = vocabulary.special_ids
        self.ids: list[int] = [i for i, text in enumerate(vocabulary.tokens) if text and i not in hidden]

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Let everybody leave; what is raised there does not hide what was found before."""
        try:
            self.leave_all()
        except Exception:
            if error is None:
                raise

    @property
    def most_requests(self) -> int:
        """As many as the cache holds, up to 3."""
        limit = self.target.max_batch_size
        return 3 if limit is None else min(3, limit)

    def told(self, tokens: Iterable[int]) -> str:
        """Tokens for people."""
        texts = self.adapter.vocabulary.tokens
        return f"[{', '.join(f'{texts[i]!r} ({i})' if 0 <= i < len(texts) else f'id {i}' for i in tokens)}]"

    def some_tokens(self, rng: np.random.Generator, count: int) -> list[int]:
        """Random text tokens, no two alike where there are enough."""
        chosen = rng.choice(len(self.ids), count, replace=count > len(self.ids))
        return [self.ids[int(i)] for i in chosen]

    def some_nodes(self, rng: np.random.Generator, root: int, parents: Sequence[int]) -> Nodes:
        """Random tokens below a root."""
        return Nodes((root, *self.some_tokens(rng, len(parents) - 1)), tuple(parents))

    def come(self, name: str, tokens: Sequence[int]) -> None:
        """Add a request."""
        self.story.tell(f"add {name!r} with {self.told(tokens)}")
        self.target.add(name, list(tokens))
        self.histories[name] = list(tokens)

    def leave(self, name: str) -> None:
        """Remove a request."""
        self.story.tell(f"remove {name!r}")
        self.histories.pop(name, None)
        self.target.remove(name)

    def leave_all(self) -> None:
        """Remove all requests."""
        for name in list(self.histories):
            self.leave(name)

    def verify(self, trees: dict[str, Nodes], where: str = "") -> torch.Tensor:
        """Verify host trees of some requests, and note what each node shows; returns the logits as they are."""
        tree = tree_of(self.step + 1, list(trees.values()))
        logits = self.verify_tree(
            list(trees), tree, told="; ".join(self._told_nodes(*item) for item in trees.items())
        )
        self.see(trees, logits, where)
        return logits

    def verify_tree(
        self, names: Sequence[str], tree: DraftTree, unresolved: Unresolved | None = None, told: str = ""
    ) -> torch.Tensor:
        """Verify any tree, and wait for its logits."""
        self.story.tell(f"verify {told}")
        return self.target.verify(self.batch_of(names, unresolved), tree).wait()

    def batch_of(self, names: Sequence[str], unresolved: Unresolved | None = None) -> DecodeBatch:
        """The next step's batch, which `commit` is for."""
        self.step += 1
        self.batch: DecodeBatch = DecodeBatch(self.step, tuple(map(self._view, names)), unresolved)
        return self.batch

    def see(self, trees: dict[str, Nodes], logits: torch.Tensor, where: str = "") -> None:
        """Note what nodes show; `histories` are those in front of the roots' own paths."""
        num_nodes = sum(len(nodes.tokens) for nodes in trees.values())
        same(f"rows of the logits of {num_nodes} nodes, padding among them", len(logits), num_nodes)
        rows, first = on_host(logits, self.adapter.vocabulary.vocab_size), 0
        for name, nodes in trees.items():
            for node, token in enumerate(nodes.tokens):
                if token >= 0:
                    tokens = (*self.histories[name], *nodes.tokens_to(node))
                    seen = f"node {node} of {name!r}{where and ', '}{where}"
                    self._seen.append(Seen(tokens, rows[first + node], seen))
            first += len(nodes.tokens)

    def commit(self, trees: dict[str, Nodes], ends: Sequence[int], bonus: Sequence[int]) -> None:
        """Commit the paths to some nodes, each with a bonus token, or none where that is -1."""
        paths = [nodes.path(end) for nodes, end in zip(trees.values(), ends, strict=True)]
        self.story.tell(
            "commit " + "; ".join(
                f"of {name!r} nodes {path}{f', bonus token {self.told([token])}' if token >= 0 else ''}"
                for name, path, token in zip(trees, paths, bonus, strict=True)
            )
        )  # fmt: skip
        self.target.commit(self.batch, self.launched(accepted(paths, bonus)))
        for (name, nodes), end, token in zip(trees.items(), ends, bonus, strict=True):
            self.histories[name] += [*nodes.tokens_to(end), *([token] if token >= 0 else [])]

    def launched(self, paths: AcceptedPaths) -> Launched[AcceptedPaths]:
        """Paths as work on the target's stream, behind the forward."""
        return self.adapter.device.launch(lambda: paths, "accept")

    def keep_roots(self, trees: dict[str, Nodes]) -> None:
        """Commit the roots, and a bonus token each."""
        self.commit(trees, [0] * len(trees), [self.ids[0]] * len(trees))

    def compare(self, tolerance: float) -> None:
        """Raise unless what was seen is what ordinary requests show; all requests leave before."""
        self.leave_all()
        told = Story(self.story)
        for seen in self._seen:
            if seen.tokens not in self._expected:
                self._expected[seen.tokens] = self._alone(seen.tokens)
                self.story[:] = told  # an example is not told by what it is compared with
        for seen in self._seen:
            close(
                seen.logits,
                self._expected[seen.tokens],
                tolerance,
                f"{seen.where}, behind {self.told(seen.tokens)}: the logits",
                "a request that begins with these tokens",
            )

    def _alone(self, tokens: tuple[int, ...]) -> torch.Tensor:
        name = f"alone {len(self._expected)}"
        trees = {name: Nodes(tokens[-1:], (-1,))}
        self.come(name, tokens)
        logits = self.verify_tree([name], tree_of(self.step + 1, [*trees.values()]))
        found = on_host(logits, self.adapter.vocabulary.vocab_size)[0]
        self.keep_roots(trees)
        self.leave(name)
        return found

    def _view(self, name: str) -> RequestView:
        history = list(self.histories[name])
        return RequestView(name, history, len(history), MAX_DRAFT_TOKENS, SamplingParams())

    def _told_nodes(self, name: str, nodes: Nodes) -> str:
        return f"of {name!r} {self.told(nodes.tokens)} with parents {list(nodes.parents)}"


def tree_of(step: int, trees: Sequence[Nodes]) -> DraftTree:
    """A batch's trees on the host."""
    cu_nodes = np.cumsum([0, *(len(nodes.tokens) for nodes in trees)], dtype=np.int64)
    tokens, parents = (
        np.array([value for nodes in trees for value in getattr(nodes, name)], np.int64)
        for name in ("tokens", "parents")
    )
    return DraftTree.from_host(step, HostTree.from_parents(cu_nodes, tokens, parents))


def accepted(paths: Sequence[Sequence[int]], bonus: Sequence[int]) -> AcceptedPaths:
    """Accepted paths, each from its root down, and bonus tokens, -1 for none."""
    index = np.full((len(paths), max(map(len, paths))), -1, np.int64)
    for row, path in enumerate(paths):
        index[row, : len(path)] = path
    lengths = np.array([len(path) - 1 for path in paths], np.int64)
    return AcceptedPaths(index, lengths, np.array(bonus, np.int64))


def on_host(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """A copy of the columns that are real tokens."""
    return logits[:, :vocab_size].detach().float().cpu().clone()


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str, whose: str) -> None:
    """Raise unless two rows of logits are equal up to `tolerance` of the largest."""
    scale = max(1.0, float(expected[expected.isfinite()].abs().max())) if expected.isfinite().any() else 1.0
    if not torch.allclose(found, expected, rtol=0.0, atol=tolerance * scale, equal_nan=True):
        differ = float((found - expected).abs().nan_to_num(torch.inf).max())
        expect(False, f"{what} differ by up to {differ:.3g} from those of {whose} (largest {scale:.3g})")


def seeded(example: int) -> np.random.Generator:
    """The randomness of an example: the same in every run."""
    return np.random.default_rng([20, example])


def goes_on(play: Play, name: str, tolerance: float) -> None:
    """Somebody who was refused comes again, and a step shows what it has to."""
    rng = seeded(12)
    play.come(name, play.some_tokens(rng, 3))
    names = list(play.histories)[-play.most_requests :]
    trees = {name: play.some_nodes(rng, play.histories[name][-1], (-1, 0)) for name in names}
    play.verify(trees, "after a request was refused")
    play.keep_roots(trees)
    play.compare(tolerance)


class PathsError(Exception):
    """What finding the paths raises in a check."""


def fail() -> AcceptedPaths:
    """The work that finds a failed step's paths."""
    raise PathsError("no memory to find the paths in")
