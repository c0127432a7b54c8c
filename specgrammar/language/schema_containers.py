"""JSON arrays and objects out of the nodes of their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specgrammar.language.json_text import Layout
from specgrammar.language.regex import EMPTY, Alt, Node, Repeat
from specgrammar.language.rules import optional, repeat, seq

Name = Callable[[Node], Node]
"""Makes a node a rule of its own and returns the reference to it."""


@dataclass(frozen=True)
class Member:
    """One declared member of an object: its name, the separator and its value."""

    node: Node
    required: bool


def array_node(
    prefix: Sequence[Node | None], items: Node | None, least: int, most: int | None, layout: Layout
) -> Node | None:
    """An array.

    Args:
        prefix: the first items; None where nothing is possible.
        items: any later item; None where nothing is possible.
        least: fewest items.
        most: most items, None for no limit.
        layout: the text between values.

    Returns:
        None if no array has as many items as asked.
    """
    possible = next((i for i, item in enumerate(prefix) if item is None), len(prefix))
    if possible < len(prefix) or items is None:
        most = possible if most is None else min(most, possible)
    if most is not None:
        if least > most:
            return None
        prefix = prefix[:most]
    first = [item for item in prefix if item is not None]
    separated = len(first)
    rest: Node = EMPTY
    if items is not None and most != separated:
        rest = _repeated(items, separated, least, most, layout)
    for i in reversed(range(separated)):
        part = seq(layout.item, first[i], rest) if i else seq(first[i], rest)
        rest = part if i < least else optional(part)
    return layout.enclose("[]", rest)


def _repeated(item: Node, before: int, least: int, most: int | None, layout: Layout) -> Node:
    another = seq(layout.item, item)
    if before:
        return repeat(another, max(0, least - before), None if most is None else most - before)
    some = seq(item, repeat(another, max(0, least - 1), None if most is None else most - 1))
    return some if least else optional(some)


def object_node(
    members: Sequence[Member], extra: Node | None, allow_empty: bool, layout: Layout, name: Name
) -> Node | None:
    """An object: declared members in their order, then further ones.

    Args:
        members: the declared members.
        extra: any further member, None if there may be none.
        allow_empty: whether it may have no member (asked only where no member is required).
        layout: the text between values.
        name: makes a node a rule; parts that appear in several places are named, so that the size of the
            grammar stays linear in the number of members.

    Returns:
        None if nothing is left: no member is possible and it may not be empty.
    """
    num_leading = next((i for i, member in enumerate(members) if member.required), len(members))
    nodes = [
        name(member.node) if i <= num_leading and num_leading else member.node
        for i, member in enumerate(members)
    ]
    more = Repeat(seq(layout.item, extra), 0, None) if extra is not None else EMPTY
    tails: list[Node] = [more]
    for i in reversed(range(1, len(members))):
        part = seq(layout.item, nodes[i])
        tail = seq(part if members[i].required else optional(part), tails[0])
        tails.insert(0, name(tail) if i <= num_leading else tail)
    starts = [seq(nodes[i], tails[i]) for i in range(min(num_leading + 1, len(members)))]
    if num_leading == len(members):
        if extra is not None:
            starts.append(seq(extra, more))
        if allow_empty:
            starts.append(EMPTY)
    if not starts:
        return None
    inner = starts[0] if len(starts) == 1 else Alt(tuple(starts))
    return layout.enclose("{}", inner)


def any_members(extra: Node, least: int, most: int | None, layout: Layout) -> Node | None:
    """An object without declared members; None if `least > most`."""
    if most is not None and least > most:
        return None
    some: Node = EMPTY
    if most != 0:
        another = seq(layout.item, extra)
        some = seq(extra, repeat(another, max(0, least - 1), None if most is None else most - 1))
        some = some if least else optional(some)
    return layout.enclose("{}", some)
