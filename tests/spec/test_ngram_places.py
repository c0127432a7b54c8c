"""Places of n-grams against a slow search of everything that a log holds; nodes against a slow vote."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.spec.logs import Lanes, TokenLog
from specgrammar.spec.places import NgramPlaces
from specgrammar.spec.shared import SharedCorpus
from specgrammar.spec.votes import vote

MOST = 4


@dataclass
class SlowLogs:
    """What was added: texts, and who wrote which token of the mixed log."""

    texts: list[list[int]] = field(default_factory=list)
    mixed: list[tuple[int, int]] = field(default_factory=list)

    def occurrences(self, end: list[int], text: int | None, limit: int) -> list[int]:
        """Places behind `end` in a text, or in what the mixed log holds (None); the latest first."""
        if text is not None:
            places = list(range(len(self.texts[text])))
            before = [self.texts[text][:place] for place in places]
        else:
            places = list(range(max(0, len(self.mixed) - limit), len(self.mixed)))
            before = (
                [self.texts[writer][:position] for writer, position in self.mixed[places[0] :]]
                if places
                else []
            )
        found = [
            p
            for p, b in zip(places, before, strict=True)
            if len(b) >= len(end) and b[len(b) - len(end) :] == end
        ]
        return found[::-1]

    def found(self, end: list[int], length: int, longest: int, text: int | None, limit: int) -> list[int]:
        """As `NgramPlaces.find` states it for one n-gram: those of a longer one left out, but counted."""
        if len(end) < length:
            return []
        here = self.occurrences(end[len(end) - length :], text, limit)[:MOST]
        if length < longest and len(end) > length:
            longer = set(self.occurrences(end[len(end) - length - 1 :], text, limit))
            here = [-1 if place in longer else place for place in here]
        return here


@given(
    turns=st.lists(
        st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=12), st.booleans()), min_size=3, max_size=3),
        min_size=1,
        max_size=14,
    ),
    min_match=st.integers(1, 2),
    more=st.integers(0, 3),
    limit=st.integers(1, 40),
)
def test_a_batch_finds_what_a_slow_search_finds(
    turns: list[list[tuple[list[int], bool]]], min_match: int, more: int, limit: int
) -> None:
    """Three texts grow side by side; parts of them also go to a log that forgets."""
    longest = min_match + more
    places = NgramPlaces(min_match, longest)
    shared = SharedCorpus(places, limit)
    logs = [places.new_log() for _ in range(3)]
    slow = SlowLogs([[], [], []])
    for turn in turns:
        runs = [(index, new, is_shared) for index, (new, is_shared) in enumerate(turn) if new]
        if runs:
            tokens = np.array([token for _, new, _ in runs for token in new], dtype=np.int32)
            is_mixed = np.repeat([is_shared for *_, is_shared in runs], [len(new) for _, new, _ in runs])
            added = places.extend(
                [logs[i] for i, *_ in runs], [len(new) for _, new, _ in runs], tokens, (shared.log, is_mixed)
            )
            assert added.tolist() == list(range(len(slow.mixed), len(slow.mixed) + is_mixed.sum()))
            for index, new, is_shared in runs:
                if is_shared:
                    slow.mixed += [(index, len(slow.texts[index]) + i) for i in range(len(new))]
                slow.texts[index] += new
        assert [places.tail(log, 5) for log in logs] == [text[-5:] for text in slow.texts]
        assert len(shared) == min(limit, len(slow.mixed))
        own = Lanes.of(logs)
        contexts = places.contexts(own)
        lanes = own.with_more(Lanes.of_one(shared.log, 3))
        found = places.find(lanes, np.concatenate((contexts, contexts), axis=1), MOST)
        for column in range(6):
            text = slow.texts[column % 3]
            for row, length in enumerate(places.lengths.tolist()):
                where = column if column < 3 else None
                expected = slow.found(text, length, longest, where, limit)
                assert found[:, row, column].tolist() == expected + [-1] * (MOST - len(expected))


def test_frequent_ngrams_do_not_hide_rare_ones() -> None:
    """A bucket is shared by many n-grams here: the log has 64 buckets, the text as many different tokens."""
    places = NgramPlaces(1, 1)
    log = places.new_log(limit=64)
    own = places.new_log()
    rare = list(range(100, 130))
    text = [token for token in rare for _ in range(2)]
    tokens = np.array([*text, 5, 5, 5], dtype=np.int32)
    places.extend([own], [len(tokens)], tokens, (log, np.ones(len(tokens), dtype=np.bool_)))
    for index, token in enumerate(rare):
        asker = places.new_log()
        places.extend([asker], [1], np.array([token], dtype=np.int32))
        context = places.contexts(Lanes.of([asker]))
        found = places.find(Lanes.of([log]), context, 3)
        assert found[:, 0, 0].tolist() == [2 * index + 2, 2 * index + 1, -1]
        places.release(asker)


def test_a_place_number_beyond_32_bits_is_a_place() -> None:
    places = NgramPlaces(1, 2)
    log, own = places.new_log(limit=10), places.new_log()
    log.num_tokens = 2**40
    tokens = np.array([1, 2, 3, 1, 2], dtype=np.int32)
    places.extend([own], [5], tokens, (log, np.ones(5, dtype=np.bool_)))
    found = places.find(Lanes.of([log]), places.contexts(Lanes.of([own])), 3)
    assert found[:, 0, 0].tolist() == [2**40 + 2, -1, -1]
    assert places.tokens_at(Lanes.of([log]), found[0, 0]).tolist() == [3]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300)), max_size=30))
def test_released_memory_is_used_again(changes: list[tuple[bool, int]]) -> None:
    """Logs come, grow and go; the others keep what they hold, and nothing is left when all are gone."""
    places = NgramPlaces(1, 2)
    live: list[tuple[TokenLog, list[int]]] = []
    for number, (comes, size) in enumerate(changes):
        if comes or not live:
            live.append((places.new_log(), []))
        elif size % 3 == 0:
            places.release(live.pop(size % len(live))[0])
        else:
            log, text = live[size % len(live)]
            new = [(number + i) % 7 for i in range(size)]
            places.extend([log], [size], np.array(new, dtype=np.int32))
            text += new
        for log, text in live:
            assert places.tail(log, len(text) + 1) == text
    for log, _ in live:
        places.release(log)
    assert places._num_used == 0
    assert not places._free


def slow_vote(
    ways: list[tuple[list[int], int]], num_nodes: int, breadth: int
) -> list[tuple[list[int], float, int]]:
    """Path, score and first voter of each node, the likeliest first; `vote` states the order."""
    found: list[tuple[float, int, int, list[int], float]] = []

    def descend(path: list[int], chance: float) -> None:
        level = len(path)
        here = [(w, v, i) for i, (w, v) in enumerate(ways) if w[:level] == path and len(w) > level]
        first = {w[level]: i for w, _, i in reversed(here)}
        votes = {token: sum(v for w, v, _ in here if w[level] == token) for token in first}
        total = sum(votes.values()) + 1
        for token in sorted(first, key=lambda token: (-votes[token], first[token]))[:breadth]:
            score = votes[token] / total
            found.append((-(score * chance), level, first[token], [*path, token], score))
            descend([*path, token], score * chance)

    descend([], 1.0)
    return [(path, score, voter) for _, _, voter, path, score in sorted(found)[:num_nodes]]


@given(
    ways=st.lists(
        st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=5), st.integers(1, 4)), min_size=5, max_size=5),
        min_size=1,
        max_size=4,
    ),
    num_nodes=st.integers(1, 20),
    breadth=st.integers(1, 3),
)
def test_a_vote_is_the_slow_vote_of_each_request(
    ways: list[list[tuple[list[int], int]]], num_nodes: int, breadth: int
) -> None:
    continuations = np.full((5, 5, len(ways)), -1, dtype=np.int32)
    votes = np.zeros((5, len(ways)), dtype=np.int64)
    for request, voters in enumerate(ways):
        for voter, (way, weight) in enumerate(voters):
            continuations[: len(way), voter, request] = way
            votes[voter, request] = weight
    nodes = vote(continuations, votes, num_nodes, breadth)
    for request, voters in enumerate(ways):
        mine = np.flatnonzero(nodes.request == request)
        assert nodes.number[mine].tolist() == list(range(1, len(mine) + 1))
        paths: list[list[int]] = [[]]
        for node in mine:
            paths.append([*paths[nodes.parent[node]], int(nodes.token[node])])
        made = list(zip(paths[1:], nodes.score[mine].tolist(), nodes.voter[mine].tolist(), strict=True))
        assert made == slow_vote(voters, num_nodes, breadth)
