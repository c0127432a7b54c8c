"""The structures below the n-gram trees, against lists of all that was added."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.spec.places import NgramPlaces
from specgrammar.spec.shared import SharedCorpus


@given(
    capacity=st.integers(1, 6),
    writers=st.lists(st.integers(0, 2), min_size=1, max_size=20),
    batch=st.integers(1, 9),
    length=st.integers(1, 8),
)
def test_a_place_goes_on_with_what_its_writer_wrote_next(
    capacity: int, writers: list[int], batch: int, length: int
) -> None:
    """A token's place in the corpus is the token itself; several are added at a time, in runs by writer."""
    places = NgramPlaces(1, 2)
    corpus, histories = SharedCorpus(places, capacity), [places.new_log() for _ in range(3)]
    last = [-1, -1, -1]
    written: list[int] = []
    for begin in range(0, len(writers), batch):
        new = sorted(writers[begin : begin + batch])
        present = sorted(set(new))
        counts = [new.count(writer) for writer in present]
        tokens = np.arange(len(written), len(written) + len(new), dtype=np.int32)
        is_shared = np.ones(len(new), dtype=np.bool_)
        added = places.extend([histories[w] for w in present], counts, tokens, (corpus.log, is_shared))
        for writer, place in zip(
            present, corpus.connect(added, counts, [last[w] for w in present]), strict=True
        ):
            last[writer] = place
        written += new
        assert len(corpus) == min(len(written), capacity)
        held = range(len(written) - len(corpus), len(written))
        found = corpus.continuations(np.array(held), length).T.tolist()
        for place, continuation in zip(held, found, strict=True):
            later = [i for i in range(place, len(written)) if written[i] == written[place]][:length]
            assert continuation == later + [-1] * (length - len(later))
