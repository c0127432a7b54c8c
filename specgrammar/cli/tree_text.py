"""A draft tree in a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TextIO

from specgrammar.cli.tree_model import ShownNode, ShownTree, State

_MARKS = {
    State.ACCEPTED: "✓",
    State.REFUSED: "✗",
    State.LIVE: "○",
    State.ILLEGAL: "⊘",
    State.PRUNED_ILLEGAL: "✂",
    State.PRUNED_BUDGET: "…",
    State.PADDING: "·",
}
_COLOURS = (36, 33, 35, 32, 34, 31)  # cyan, yellow, magenta, green, blue, red: read on light and on dark
_BOLD, _FAINT = 1, 2
_UNVERIFIED = (State.PRUNED_ILLEGAL, State.PRUNED_BUDGET, State.PADDING)


def wants_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user has not said otherwise (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def tree_lines(tree: ShownTree, colour: bool) -> Iterator[str]:
    """The tree, a run of like nodes a line, and a legend."""

    def painted(text: str, source: str, *styles: int) -> str:
        codes = [*styles, *([_COLOURS[tree.sources.index(source) % len(_COLOURS)]] if source else [])]
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if colour and codes else text

    def line(run: list[ShownNode]) -> str:
        node = run[0]
        style = [_BOLD] if node.state is State.ACCEPTED else [_FAINT] if node.state in _UNVERIFIED else []
        texts = " ─ ".join(painted(one.text, one.source, *style) for one in run)
        return f"{_MARKS[node.state]} {texts}" + (f"  ({node.source})" if node.source else "")

    yield f"{tree.root.text}  (the last token before step {tree.step})"
    waiting = [(node, "", node is tree.root.children[-1]) for node in tree.root.children[::-1]]
    while waiting:
        node, indent, is_last = waiting.pop()
        run = _run_from(node)
        node = run[-1]
        yield f"{indent}{'└─' if is_last else '├─'} {line(run)}"
        below = indent + ("   " if is_last else "│  ")
        waiting += [(child, below, child is node.children[-1]) for child in node.children[::-1]]
    if tree.bonus:
        yield f"then {tree.bonus}  (the target's own)"
    yield ""
    if tree.sources:
        yield "drafted by " + ", ".join(painted(name, name) for name in tree.sources)
    for state, number in ((state, tree.num_in_state[state]) for state in State):
        if number:
            yield f"{_MARKS[state]} {number} {state.value}"


def _run_from(node: ShownNode) -> list[ShownNode]:
    """A node and the only children behind it that are of its source and state."""
    run = [node]
    while len(node.children) == 1:
        child = node.children[0]
        if (child.source, child.state) != (node.source, node.state):
            break
        run.append(child)
        node = child
    return run
