"""Where n-grams occurred, for many token sequences at once.

A place is a position in a log of tokens; what stands before it in its text is its context. `NgramPlaces`
keeps all logs in shared arrays, so that a whole batch is added, and its contexts looked up, in a number of
NumPy calls that does not depend on the batch.

For every length of n-gram a log has a hash table as large as itself. A bucket holds the most recent place whose
context fell into it, and every place knows two older ones of its bucket:

    same   the most recent place behind the same n-gram
    other  the most recent place behind another one

To find an n-gram, follow `other` from the head of its bucket until a place is behind it, then `same` from place
to place. So those that share a bucket with an n-gram that occurs often pass it in one step. N-grams are
compared by 64-bit keys. Nothing is ever removed: a log with a limit writes over its oldest tokens, and a link
to a place that is no longer held ends the search, since the places behind it are older still.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specgrammar.spec.logs import Lanes, TokenLog

_MIN_SIZE = 64
_MIN_ARENA = 1024
_MOST_AT_ONCE = 65_536
_MOST_OTHERS = 64
"""Places of other n-grams that are passed at most. That several n-grams share a bucket and are all frequent is
rare; the search gives up there and misses what is older."""

_MULTIPLIER = 0x9E3779B97F4A7C15
_NO_KEY, _NO_CONTEXT = np.uint64(0), np.uint64(1)
"""Keys of contexts that are shorter than the n-gram: of places, and of what is looked up. They never match."""


class NgramPlaces:
    """Logs of tokens, and the most recent places of every n-gram in each of them.

    Arrays with a row per length hold the longest n-grams first.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        """No logs yet; n-grams have `min_match` to `max_match` tokens."""
        self.lengths: NDArray[np.int64] = np.arange(max_match, min_match - 1, -1)
        self._num_used = 0
        self._free: dict[int, list[int]] = {}
        rows = len(self.lengths), _MIN_ARENA
        self._tokens = np.zeros(_MIN_ARENA, dtype=np.int32)
        self._keys = np.zeros(rows, dtype=np.uint64)
        self._heads, self._same, self._other = (np.full(rows, -1, dtype=np.int64) for _ in range(3))

    def new_log(self, limit: int | None = None) -> TokenLog:
        """An empty log; one with a limit gets its slots at once, before those that come and go."""
        size = _MIN_SIZE if limit is None else max(_MIN_SIZE, _power_of_two(min(limit, _MOST_AT_ONCE)))
        return TokenLog(limit, self._allocate(size), size)

    def release(self, log: TokenLog) -> None:
        """Give its memory to other logs; it must not be used again."""
        self._free.setdefault(log.size, []).append(log.start)
        while last := [size for size, starts in self._free.items() if self._num_used - size in starts]:
            self._num_used -= last[0]
            self._free[last[0]].remove(self._num_used)
            if not self._free[last[0]]:
                del self._free[last[0]]
        if self._num_used < len(self._tokens) // 4:
            self._resize(max(_MIN_ARENA, self._num_used * 2))

    def extend(
        self,
        logs: Sequence[TokenLog],
        counts: Sequence[int],
        tokens: NDArray[np.int32],
        mixed: tuple[TokenLog, NDArray[np.bool_]] | None = None,
    ) -> NDArray[np.int64]:
        """Add to each log its next tokens; what stands before a token in its log is its context.

        Args:
            logs: without a limit, no two the same.
            counts: how many of the tokens are for each of them.
            tokens: int32 `[n]`, log by log.
            mixed: a log with a limit to which tokens are added as well, each with the context from its own log;
                and which ones, bool `[n]`.

        Returns:
            The places in `mixed`, int64.
        """
        first = np.array([self._advance(log, count) for log, count in zip(logs, counts, strict=True)])
        repeats = np.array(counts, dtype=np.int64)
        lanes = Lanes.of(logs)[np.repeat(np.arange(len(logs)), repeats)]
        places = np.arange(len(tokens)) + np.repeat(first - (np.cumsum(repeats) - repeats), repeats)
        slots = lanes.start + places
        self._tokens[slots] = tokens
        keys = self._context_keys(slots, places, _NO_KEY)
        if mixed is None:
            self._link(lanes, places, keys)
            return np.zeros(0, dtype=np.int64)
        log, chosen = mixed[0], np.flatnonzero(mixed[1])
        added = self._advance(log, len(chosen)) + np.arange(len(chosen), dtype=np.int64)
        # Of more than it holds, the first are forgotten at once.
        held = added >= log.num_tokens - len(log)
        chosen, kept = chosen[held], added[held]
        mixed_lanes = Lanes.of_one(log, len(kept))
        self._tokens[mixed_lanes.slots(kept)] = tokens[chosen]
        self._link(
            lanes.with_more(mixed_lanes),
            np.concatenate((places, kept)),
            np.concatenate((keys, keys[:, chosen]), axis=1),
        )
        return added

    def find(self, lanes: Lanes, contexts: NDArray[np.uint64], most: int) -> NDArray[np.int64]:
        """Where the n-grams that contexts end with occurred.

        Args:
            lanes: where to look, one log per context.
            contexts: uint64 `[lengths, lanes]`, from `contexts`.
            most: how many places of an n-gram are looked at, the most recent ones.

        Returns:
            int64 `[most, lengths, lanes]`, the most recent place first, filled with -1. A place behind a longer
            n-gram of its context stands there alone.
        """
        num_lengths, num_lanes = contexts.shape
        found = np.full((most, num_lengths * num_lanes), -1, dtype=np.int64)
        # A lane per n-gram; links are followed in the flat arrays, where each length has a row.
        row, column = np.divmod(np.arange(num_lengths * num_lanes), num_lanes)
        ngrams, keys = lanes[column].in_row(row * len(self._tokens)), contexts.ravel()
        place = self._first_behind(ngrams, keys, self._heads.ravel()[ngrams.buckets(keys)])
        lane = np.flatnonzero(place >= 0)
        place, here, same = place[lane], ngrams[lane], self._same.ravel()
        for places in found:
            if not len(lane):
                break
            places[lane] = place
            place = same[here.slots(place)]
            held = place >= here.oldest
            if not held.all():
                lane, place, here = lane[held], place[held], here[held]
        if num_lengths > 1:
            self._keep_longest(ngrams, contexts, found)
        return found.reshape(most, num_lengths, num_lanes)

    def tokens_at(self, lanes: Lanes, places: NDArray[np.int64]) -> NDArray[np.int32]:
        """The tokens at places that are held: `places` is int64 `[..., lanes]`."""
        tokens: NDArray[np.int32] = self._tokens[lanes.slots(places)]
        return tokens

    def copy_from(self, lanes: Lanes, places: NDArray[np.int64], length: int) -> NDArray[np.int32]:
        """How logs without a limit went on at places: int32 `[length, lanes]`.

        What reaches the end goes on with what it has copied, so that a run or a cycle continues.
        """
        steps = np.arange(length)[:, None] % (lanes.end - places)
        return self.tokens_at(lanes, places + steps)

    def contexts(self, lanes: Lanes) -> NDArray[np.uint64]:
        """The keys of what logs, without a limit, end with: uint64 `[lengths, lanes]`."""
        return self._context_keys(lanes.start + lanes.end, lanes.end, _NO_CONTEXT)

    def contexts_behind(self, lanes: Lanes, drafts: Sequence[Sequence[int]]) -> NDArray[np.uint64]:
        """The keys of what logs would end with behind drafts that are not added: uint64 `[lengths, lanes]`."""
        longest = int(self.lengths[0])
        last = np.full((longest, len(drafts)), -1, dtype=np.int64)  # the token before the end, before that, ...
        for lane, tokens in enumerate(drafts):
            behind = list(reversed(tokens[-longest:]))
            last[: len(behind), lane] = behind
        num_drafts = np.array([len(tokens) for tokens in drafts], dtype=np.int64)
        for distance in range(longest):
            place = lanes.end + num_drafts - 1 - distance
            in_log = (num_drafts <= distance) & (place >= 0)
            last[distance, in_log] = self._tokens[(lanes.start + place)[in_log]]
        return self._keys_of(last, num_drafts + lanes.end, _NO_CONTEXT)

    def tail(self, log: TokenLog, count: int) -> list[int]:
        """The last `count` tokens of a log without a limit, or all if there are fewer."""
        end = log.start + log.num_tokens
        tokens: list[int] = self._tokens[max(log.start, end - count) : end].tolist()
        return tokens

    def _context_keys(
        self, slots: NDArray[np.int64], places: NDArray[np.int64], missing: np.uint64
    ) -> NDArray[np.uint64]:
        """Keys `[lengths, n]` of what stands before slots; `missing` where fewer tokens stand there."""
        distances = np.arange(1, int(self.lengths[0]) + 1)[:, None]
        return self._keys_of(self._tokens[np.maximum(slots - distances, 0)], places, missing)

    def _keys_of(
        self, last: NDArray[np.integer[Any]], num_tokens: NDArray[np.int64], missing: np.uint64
    ) -> NDArray[np.uint64]:
        """Keys `[lengths, n]` of tokens `[longest, n]`, the last one first; `missing` where there are fewer."""
        keys = np.empty((len(self.lengths), last.shape[1]), dtype=np.uint64)
        key = np.zeros(last.shape[1], dtype=np.uint64)
        factor = 1
        for length, token in enumerate(last, start=1):
            factor = factor * _MULTIPLIER % 2**64
            key += (token.astype(np.uint64) + np.uint64(1)) * np.uint64(factor)
            if length >= self.lengths[-1]:
                keys[self.lengths[0] - length] = np.where(num_tokens >= length, key, missing)
        return keys

    def _link(self, lanes: Lanes, places: NDArray[np.int64], keys: NDArray[np.uint64]) -> None:
        """Put new places into their buckets: those of a lane's log in ascending order, behind all it had."""
        slots = lanes.slots(places)
        self._keys[:, slots] = keys
        heads, all_keys = self._heads.ravel(), self._keys.ravel()
        same, other = self._same.ravel(), self._other.ravel()

        row, column = np.nonzero(keys != _NO_KEY)
        key, lanes = keys[row, column], lanes[column].in_row(row * len(self._tokens))
        bucket = lanes.buckets(key)
        order = np.argsort(bucket, kind="stable")
        if not len(order):
            return
        bucket, key, lanes, place = bucket[order], key[order], lanes[order], places[column[order]]
        slot = lanes.slots(place)

        # Runs of places behind the same n-gram in one bucket; `before` is what the bucket had last before each.
        is_first = np.concatenate(([True], bucket[1:] != bucket[:-1]))
        starts_run = is_first | np.concatenate(([True], key[1:] != key[:-1]))
        before = np.concatenate(([-1], place[:-1]))
        before[is_first] = heads[bucket[is_first]]
        before[before < lanes.oldest] = -1

        start = np.flatnonzero(starts_run)
        before_run, run_lanes, run_key = before[start], lanes[start], key[start]
        before_slot = run_lanes.slots(before_run)
        goes_on = (before_run >= 0) & (all_keys[before_slot] == run_key)
        other_of_run = np.where(goes_on, other[before_slot], before_run)
        other[slot] = other_of_run[np.cumsum(starts_run) - 1]
        before[start] = self._first_behind(run_lanes, run_key, before_run)
        same[slot] = before
        is_last = np.concatenate((is_first[1:], [True]))
        heads[bucket[is_last]] = place[is_last]

    def _first_behind(
        self, lanes: Lanes, keys: NDArray[np.uint64], places: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The first place behind each lane's n-gram, from a place of its bucket on; -1 where there is none."""
        all_keys, other = self._keys.ravel(), self._other.ravel()
        found = np.where(places >= lanes.oldest, places, -1)
        lane = np.flatnonzero(found >= 0)
        lanes, keys, place = lanes[lane], keys[lane], found[lane]
        for _ in range(_MOST_OTHERS):
            slot = lanes.slots(place)
            is_other = all_keys[slot] != keys
            if not is_other.any():
                return found
            lane, lanes, keys, place = lane[is_other], lanes[is_other], keys[is_other], other[slot[is_other]]
            held = place >= lanes.oldest
            found[lane] = np.where(held, place, -1)
            lane, lanes, keys, place = lane[held], lanes[held], keys[held], place[held]
        found[lane] = -1
        return found

    def _keep_longest(self, ngrams: Lanes, contexts: NDArray[np.uint64], found: NDArray[np.int64]) -> None:
        """Blank the places that are also behind the next longer n-gram of their context."""
        flat, num_lanes = found.ravel(), contexts.shape[1]
        index = np.flatnonzero(flat >= 0)
        ngram = index % found.shape[1]
        shorter = ngram >= num_lanes
        index, ngram = index[shorter], ngram[shorter]
        slots = ngrams.start[ngram] + flat[index] % ngrams.period[ngram]
        longer_key = self._keys.ravel()[slots - len(self._tokens)]
        flat[index[longer_key == contexts.ravel()[ngram - num_lanes]]] = -1

    def _advance(self, log: TokenLog, count: int) -> int:
        """Make room for more tokens, which are not written yet; the first one's place."""
        self._reserve(log, log.num_tokens + count)
        first = log.num_tokens
        log.num_tokens += count
        return first

    def _reserve(self, log: TokenLog, num_tokens: int) -> None:
        """Give a log slots for so many tokens, or up to its limit; it stays if nothing lies behind it."""
        if log.limit is not None:
            num_tokens = min(num_tokens, log.limit)
        if num_tokens <= log.size:
            return
        size = _power_of_two(num_tokens)
        held = slice(log.start, log.start + log.num_tokens)
        tokens, keys = self._tokens[held].copy(), self._keys[:, held].copy()
        self.release(log)
        log.start, log.size = self._allocate(size), size
        self._tokens[log.start : log.start + log.num_tokens] = tokens
        self._link(Lanes.of_one(log, log.num_tokens), np.arange(log.num_tokens), keys)

    def _allocate(self, size: int) -> int:
        """The first of `size` slots, with empty buckets."""
        free = self._free.get(size)
        if free:
            start = free.pop()
        else:
            start = self._num_used
            self._num_used += size
            room = len(self._tokens)
            if self._num_used > room:
                self._resize(max(self._num_used, room * 3 // 2))
        self._heads[:, start : start + size] = -1
        return start

    def _resize(self, num_slots: int) -> None:
        """Make the arrays so long; what is in use stays."""
        kept = min(num_slots, len(self._tokens))
        tokens, keys, links = self._tokens, self._keys, (self._heads, self._same, self._other)
        self._tokens = np.zeros(num_slots, dtype=np.int32)
        self._tokens[:kept] = tokens[:kept]
        rows = len(self.lengths), num_slots
        self._keys = np.zeros(rows, dtype=np.uint64)
        self._keys[:, :kept] = keys[:, :kept]
        self._heads, self._same, self._other = (np.full(rows, -1, dtype=np.int64) for _ in links)
        for new, old in zip((self._heads, self._same, self._other), links, strict=True):
            new[:, :kept] = old[:, :kept]


def _power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
