"""Intervals of time: lists of (begin, end), sorted and disjoint where nothing else is said."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf

from specgrammar.runtime.timeline import Span

Interval = tuple[float, float]


def innermost(spans: Sequence[Span]) -> list[Span]:
    """One lane's spans cut so that each moment belongs to the innermost one alone, in order.

    Args:
        spans: nested, in the order in which they ended.
    """
    pieces: list[Span] = []
    open_: list[Span] = []
    covered = -inf

    def cover(span: Span, until: float) -> None:
        nonlocal covered
        if until > max(covered, span.begin):
            pieces.append(span._replace(begin=max(covered, span.begin), end=until))
            covered = until

    # Outer ones first; of two with the same times the outer one ended later.
    for _, span in sorted(enumerate(spans), key=lambda entry: (entry[1].begin, -entry[1].end, -entry[0])):
        while open_ and open_[-1].end <= span.begin:
            done = open_.pop()
            cover(done, done.end)
        if open_:
            cover(open_[-1], span.begin)
        open_.append(span)
    for span in reversed(open_):
        cover(span, span.end)
    return pieces


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of any intervals."""
    union: list[Interval] = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((begin, end))
    return union


def common(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """What both cover."""
    both: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            both.append((begin, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return both


def between(intervals: Sequence[Interval]) -> list[Interval]:
    """The gaps between one interval and the next."""
    return [(end, begin) for (_, end), (begin, _) in pairwise(intervals)]


def by_step(intervals: Iterable[Interval], ends: Sequence[float]) -> list[float]:
    """How much of the intervals is in each step, cut where steps end; what is behind the last is left out."""
    seconds = [0.0] * len(ends)
    for begin, end in intervals:
        step = bisect_right(ends, begin)
        while step < len(ends) and begin < end:
            until = min(end, ends[step])
            seconds[step] += until - begin
            begin, step = until, step + 1
    return seconds


def outside(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """What `a` covers and `b` does not."""
    return common(a, between([(-inf, -inf), *b, (inf, inf)]))
