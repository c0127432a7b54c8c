"""The structures below the n-gram trees, against lists of all that was added."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from specgrammar.spec.corpus import History, NgramIndex, SharedCorpus


@given(
    capacity=st.integers(1, 6),
    writers=st.lists(st.integers(0, 2), min_size=1, max_size=20),
    length=st.integers(0, 8),
)
def test_a_place_goes_on_with_what_its_writer_wrote_next(
    capacity: int, writers: list[int], length: int
) -> None:
    corpus = SharedCorpus(NgramIndex(1, 2, max_places=4), capacity)
    last: dict[int, int] = {}
    for token, writer in enumerate(writers):
        last[writer] = corpus.append(b"", token, last.get(writer))
        assert last[writer] == token
        assert len(corpus) == min(token + 1, capacity)
        for place in range(max(0, token + 1 - capacity), token + 1):
            later = [i for i in range(place, token + 1) if writers[i] == writers[place]]
            assert corpus.continuation(place, length) == later[:length]


@given(
    text=st.lists(st.integers(0, 2), max_size=40),
    min_match=st.integers(1, 3),
    more=st.integers(0, 3),
    max_places=st.integers(1, 5),
)
def test_an_ngram_knows_its_latest_places(text: list[int], min_match: int, more: int, max_places: int) -> None:
    history = History(NgramIndex(min_match, min_match + more, max_places))
    for token in text:
        history.append(token)
    assert len(history) == len(text)
    context = history.context()
    assert context == array("i", text[-min_match - more :]).tobytes()
    for length in range(min_match, min_match + more + 1):
        occurrences = [
            place
            for place in range(length, len(text))
            if len(text) >= length and text[place - length : place] == text[len(text) - length :]
        ]
        assert list(history.index.places(context, length)) == occurrences[::-1][:max_places]


@given(text=st.lists(st.integers(0, 2), min_size=1, max_size=30), keep=st.integers(0, 30))
def test_removing_the_oldest_leaves_the_index_of_the_rest(text: list[int], keep: int) -> None:
    """Also where an n-gram had more places than it remembers."""

    def contexts(position: int) -> bytes:
        return array("i", text[max(0, position - 2) : position]).tobytes()

    removed = max(0, len(text) - keep)
    index, rest = (NgramIndex(1, 2, max_places=3) for _ in range(2))
    for position in range(len(text)):
        index.add(contexts(position), position)
    for position in range(removed):
        index.remove(contexts(position), position)
    for position in range(removed, len(text)):
        rest.add(contexts(position), position)
    assert len(index) == len(rest)
    for position in range(len(text)):
        for length in (1, 2):
            assert index.places(contexts(position), length) == rest.places(contexts(position), length)
