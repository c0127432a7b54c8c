"""A draft tree as a picture: depth from left to right, sources by colour, states by how a node is drawn."""

from __future__ import annotations

from collections.abc import Iterator

from specgrammar.cli.svg import box, document, label, line, shortened, width_of
from specgrammar.cli.tree_model import ShownNode, ShownTree, State

_FILLS = ("#cfe8ff", "#ffe3b8", "#e6d5f7", "#d3f0d0", "#ffd2d2", "#e2e2e2")
_ROOT_FILL = "#ffffff"
_STROKES = {
    State.ACCEPTED: "#0a7d33",
    State.REFUSED: "#b3261e",
    State.LIVE: "#555555",
    State.ILLEGAL: "#b3261e",
    State.PRUNED_ILLEGAL: "#b3261e",
    State.PRUNED_BUDGET: "#888888",
    State.PADDING: "#bbbbbb",
}
_DASHED = (State.PRUNED_ILLEGAL, State.PRUNED_BUDGET, State.PADDING)
_STRUCK = (State.ILLEGAL, State.PRUNED_ILLEGAL)
_SIZE, _ROW, _HEIGHT, _GAP, _MARGIN, _WIDEST = 12.0, 28.0, 20.0, 26.0, 16.0, 160.0


def draw_tree(tree: ShownTree) -> str:
    """The whole picture."""
    rows, depths = _places(tree.root)
    texts = {key: shortened(node.text, _WIDEST, _SIZE) for key, node in _by_id(tree.root)}
    widths = [
        max(width_of(texts[key], _SIZE) for key, depth in depths.items() if depth == column) + 14
        for column in range(max(depths.values()) + 1)
    ]
    lefts = [_MARGIN + sum(widths[:column]) + _GAP * column for column in range(len(widths))]
    top = _MARGIN + 30
    elements = [label(_MARGIN, _MARGIN + 12, _title(tree), size=13, bold=True)]
    for key, node in _by_id(tree.root):
        x, y = lefts[depths[key]], top + rows[key] * _ROW
        for child in node.children:
            end = lefts[depths[key] + 1], top + rows[id(child)] * _ROW + _HEIGHT / 2
            dashed = child.state in _DASHED
            elements.append(line(x + widths[depths[key]], y + _HEIGHT / 2, *end, dashed=dashed))
        elements += _node(tree, node, texts[key], x, y, widths[depths[key]])
    bottom = top + (max(rows.values()) + 1) * _ROW + 10
    legend, width, height = _legend(tree, bottom)
    widest = max(lefts[-1] + widths[-1], width, _MARGIN + width_of(_title(tree), 13)) + _MARGIN
    return document(widest, height + _MARGIN, _title(tree), [*elements, *legend])


def _title(tree: ShownTree) -> str:
    counts = tree.num_in_state
    end = f"; the target went on with {tree.bonus}" if tree.bonus else ""
    return f"Step {tree.step}: {counts[State.ACCEPTED]} of {counts.total()} drafts accepted{end}"


def _node(tree: ShownTree, node: ShownNode, text: str, x: float, y: float, width: float) -> Iterator[str]:
    tip = (
        node.text
        if node is tree.root
        else f"{node.text}: {node.source or 'unknown source'}, {node.state.value}"
    )
    yield _box(x, y, width, _HEIGHT, _fill(tree, node.source), node.state, tip)
    yield label(x + 7, y + 14, text, size=_SIZE, fill="#999999" if node.state is State.PADDING else "#222222")
    if node.state in _STRUCK:
        yield line(x + 4, y + _HEIGHT / 2, x + width - 4, y + _HEIGHT / 2)


def _fill(tree: ShownTree, source: str) -> str:
    return _FILLS[tree.sources.index(source) % len(_FILLS)] if source else _ROOT_FILL


def _box(x: float, y: float, width: float, height: float, fill: str, state: State, tip: str = "") -> str:
    thick = 2.5 if state is State.ACCEPTED else 1.0
    dashed = state in _DASHED
    return box(x, y, width, height, fill, _STROKES[state], stroke_width=thick, dashed=dashed, tip=tip)


def _legend(tree: ShownTree, y: float) -> tuple[list[str], float, float]:
    """What colours and borders mean; the elements, and how far they reach."""
    elements: list[str] = []
    entries = [(_fill(tree, name), State.LIVE, f"drafted by {name}") for name in tree.sources]
    entries += [
        (_ROOT_FILL, state, f"{number} {state.value}")
        for state, number in ((state, tree.num_in_state[state]) for state in State)
        if number
    ]
    for fill, state, text in entries:
        elements.append(_box(_MARGIN, y, 26, 14, fill, state))
        if state in _STRUCK:
            elements.append(line(_MARGIN + 3, y + 7, _MARGIN + 23, y + 7))
        elements.append(label(_MARGIN + 36, y + 11, text))
        y += 20
    return elements, max(_MARGIN + 36 + width_of(text, 12) for *_, text in entries) if entries else 0.0, y


def _by_id(root: ShownNode) -> Iterator[tuple[int, ShownNode]]:
    return ((id(node), node) for node in root.walk())


def _places(root: ShownNode) -> tuple[dict[int, int], dict[int, int]]:
    """Row and depth of each node: a first child is beside its parent, others go below all that came before."""
    rows, depths, num_rows = {id(root): 0}, {id(root): 0}, 1
    for node in root.walk():  # parents come first
        if id(node) not in rows:
            rows[id(node)], num_rows = num_rows, num_rows + 1
        for number, child in enumerate(node.children):
            depths[id(child)] = depths[id(node)] + 1
            if number == 0:
                rows[id(child)] = rows[id(node)]
    return rows, depths
