"""One request's draft tree as it is shown: every node's text, source and state, cut drafts among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from specgrammar.protocols.grammar import NodeStatus, Vocabulary
from specgrammar.runtime.draft_record import RecordedStep
from specgrammar.runtime.sources import sources_of


class State(Enum):
    """What became of a draft; the value is said in the legend."""

    ACCEPTED = "accepted"
    REFUSED = "rejected by the target, which took its parent"
    LIVE = "live: legal, and the target took another path"
    ILLEGAL = "verified, and rejected by the grammar"
    PRUNED_ILLEGAL = "pruned: rejected by the grammar before the forward"
    PRUNED_BUDGET = "pruned: over the budget"
    PADDING = "padding"


@dataclass
class ShownNode:
    """A node and what is below it.

    Attributes:
        text: of its token, what cannot be printed escaped; a space is `·`.
        source: who drafted it; empty for the root and where that is not known.
        state: what became of it; the root counts as accepted.
        children: in the tree's order, cut drafts behind the others.
    """

    text: str
    source: str
    state: State
    children: list[ShownNode] = field(default_factory=list)

    def walk(self) -> Iterator[ShownNode]:
        """It and all below it, parents first; iterative, since a chain may be long."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children[::-1]


@dataclass(frozen=True)
class ShownTree:
    """A step's tree of one request.

    Attributes:
        step: the step's number.
        root: the last committed token.
        bonus: the target's own token behind what it accepted; empty where there is none.
        sources: the names, in the tree's order.
    """

    step: int
    root: ShownNode
    bonus: str
    sources: tuple[str, ...]

    @property
    def num_in_state(self) -> Counter[State]:
        """Drafts by state, the root not counted."""
        counts = Counter(node.state for node in self.root.walk())
        counts[State.ACCEPTED] -= 1
        return counts


def shown_tree(recorded: RecordedStep, request: int, vocabulary: Vocabulary) -> ShownTree:
    """The tree of a row of a step."""
    host, drafted, paths = recorded.host, recorded.drafted, recorded.paths
    own = host.request_slice(request)
    tokens, parents = host.draft_tokens[own].tolist(), host.parents()[own].tolist()
    status = recorded.status[own].tolist()
    source_of = sources_of(drafted)
    numbers = [-1] * len(tokens) if source_of is None else source_of[own].tolist()
    taken = {int(node) for node in paths.accept_index[request] if node >= 0}
    names = drafted.sources

    def name(number: int) -> str:
        return names[number] if 0 <= number < len(names) else ""

    nodes = [ShownNode(text_of(tokens[0], vocabulary), "", State.ACCEPTED)]
    node_at: dict[tuple[int, ...], ShownNode] = {(): nodes[0]}
    path_of: list[tuple[int, ...]] = [()]
    for node in range(1, len(tokens)):
        parent = max(0, parents[node])  # padding hangs from the root
        state = _state(status[node], tokens[node], node in taken, parent in taken)
        shown = ShownNode(text_of(tokens[node], vocabulary), name(numbers[node]), state)
        nodes.append(shown)
        nodes[parent].children.append(shown)
        path_of.append((*path_of[parent], tokens[node]))
        node_at.setdefault(path_of[node], shown)
    for cut in sorted((one for one in drafted.pruned if one.request == request), key=lambda one: len(one.path)):
        above = node_at.get(cut.path[:-1])
        if above is not None and cut.path not in node_at:
            state = State.PRUNED_ILLEGAL if cut.why == "illegal" else State.PRUNED_BUDGET
            node_at[cut.path] = ShownNode(text_of(cut.path[-1], vocabulary), name(cut.source), state)
            above.children.append(node_at[cut.path])
    bonus = int(paths.bonus_token[request])
    return ShownTree(recorded.step, nodes[0], "" if bonus < 0 else text_of(bonus, vocabulary), names)


def text_of(token: int, vocabulary: Vocabulary) -> str:
    """A token's text in printable characters; its id in angle brackets where it has none."""
    text = vocabulary.tokens[token] if 0 <= token < vocabulary.vocab_size else b""
    if not text:
        return f"<{token}>"
    decoded = text.decode("utf-8", errors="backslashreplace")
    printable = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in decoded)
    return "".join(printable).replace(" ", "·")


def _state(status: int, token: int, is_taken: bool, is_parent_taken: bool) -> State:
    if is_taken:
        return State.ACCEPTED
    if token < 0 or status == NodeStatus.PADDING:
        return State.PADDING
    if status == NodeStatus.REJECTED:
        return State.ILLEGAL
    return State.REFUSED if is_parent_taken else State.LIVE
