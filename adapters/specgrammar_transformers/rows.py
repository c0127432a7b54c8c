"""Which request owns which row of a cache, and how long it is at most: the host's books."""

from __future__ import annotations

from collections.abc import Sequence

from specgrammar.errors import ModelError


class Rows:
    """Rows `[0, number of requests)` are taken.

    Attributes:
        bounds: by row: it holds no more tokens than that.
    """

    def __init__(self, num_rows: int) -> None:
        """All are free."""
        self.bounds: list[int] = []
        self._ids: list[str] = []
        self._num_rows = num_rows

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids

    def of(self, request_id: str) -> int:
        """A request's row; raises ModelError for one that has none."""
        try:
            return self._ids.index(request_id)
        except ValueError:
            raise ModelError(f"request {request_id!r} is unknown; add it first") from None

    def add(self, request_id: str) -> int:
        """Give a request an empty row.

        Raises:
            ModelError: the request has one already, or all rows are taken.
        """
        if request_id in self._ids:
            raise ModelError(f"request {request_id!r} was added before; remove it first or choose another id")
        if len(self._ids) == self._num_rows:
            raise ModelError(
                f"request {request_id!r} does not fit: the cache holds {self._num_rows} requests and all "
                "are taken; remove one or raise max_batch_size"
            )
        self._ids.append(request_id)
        self.bounds.append(0)
        return len(self._ids) - 1

    def remove(self, request_id: str) -> tuple[int, int]:
        """Free a request's row, which the last one takes over; returns both."""
        row, last = self.of(request_id), len(self._ids) - 1
        self._ids[row], self.bounds[row] = self._ids[last], self.bounds[last]
        self._ids.pop()
        self.bounds.pop()
        return row, last

    def arrange(self, request_ids: Sequence[str]) -> list[tuple[int, int]]:
        """Let these requests own the first rows, in this order; the rows that move, from where and to where."""
        front = [self.of(name) for name in request_ids]
        taken = set(front)
        order = front + [row for row in range(len(self._ids)) if row not in taken]
        self._ids = [self._ids[row] for row in order]
        self.bounds = [self.bounds[row] for row in order]
        return [(old, new) for new, old in enumerate(order) if old != new]
