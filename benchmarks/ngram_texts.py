"""Requests in the middle of real documents, for drafting from n-grams: what they wrote and what will follow."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.documents import NESTED, load_documents
from benchmarks.vocabularies import load_vocabulary

NUM_NODES = 16
"""Nodes of a tree, the root included."""
MOST_PER_STEP = 4
"""A step commits 1 to this many tokens."""


@dataclass
class Stream:
    """A request whose output is known: it has committed `output[:position]`."""

    request_id: str
    prompt: list[int]
    output: list[int]
    position: int

    @property
    def rest(self) -> list[int]:
        """What it goes on with, as far as a tree reaches."""
        return self.output[self.position : self.position + NUM_NODES]


@dataclass(frozen=True)
class Workload:
    """What a run is measured on.

    Attributes:
        warm: texts that other requests wrote before, at least as many tokens as asked for.
        texts: documents that nobody wrote yet, by what they are about; with the prompt that asks for them.
    """

    warm: list[tuple[int, ...]]
    texts: list[tuple[list[int], list[tuple[int, ...]]]]
    separator: list[int]

    @classmethod
    def load(cls, vocabulary_name: str, num_warm: int, num_unwritten: int) -> Workload:
        """Documents in a vocabulary; of each schema the first `num_unwritten` are kept to be written."""
        vocabulary = load_vocabulary(vocabulary_name)
        assert vocabulary.encode is not None
        per_nested = num_unwritten + num_warm // 300
        documents = load_documents(vocabulary, num_schemas=len(NESTED) + 24, per_nested=per_nested)
        by_schema = defaultdict(list)
        for document in documents:
            by_schema[document.schema].append(document.tokens)
        warm: list[tuple[int, ...]] = []
        texts = []
        for schema, written in by_schema.items():
            num_kept = num_unwritten if len(written) > num_unwritten else 0
            warm += written[num_kept:]
            if num_kept:
                texts.append((vocabulary.encode(schema), written[:num_kept]))
        random.Random(0).shuffle(warm)
        num_tokens, num_texts = 0, 0
        while num_tokens < num_warm and num_texts < len(warm):
            num_tokens += len(warm[num_texts])
            num_texts += 1
        return cls(warm[:num_texts], texts, vocabulary.encode("\n"))

    @property
    def num_warm(self) -> int:
        """Tokens of the warm corpus."""
        return sum(map(len, self.warm))

    def streams(self, bs: int, num_steps: int) -> list[Stream]:
        """Requests that write documents line by line, somewhere in the middle of it."""
        rng = random.Random(bs)
        streams = []
        for number in range(bs):
            prompt, texts = self.texts[number % len(self.texts)]
            # No two requests write the same document.
            mine = iter(texts[number // len(self.texts) :: -(-bs // len(self.texts))])
            position = rng.randrange(20, 200)
            output: list[int] = []
            while len(output) < position + MOST_PER_STEP * (num_steps + 1) + NUM_NODES:
                output += [*next(mine), *self.separator]
            streams.append(Stream(f"{bs} {number}", prompt, output, position))
        return streams


def accepted_lengths(
    streams: Sequence[Stream],
    draft_tokens: NDArray[np.int64],
    next_token: NDArray[np.int64],
    next_sibling: NDArray[np.int64],
) -> list[int]:
    """Tokens that each request would commit: the path of its tree that its document takes, and a bonus token.

    Args:
        streams: the requests.
        draft_tokens: int64 `[bs, N]`.
        next_token: int64 `[bs, N]`, first children.
        next_sibling: int64 `[bs, N]`, next siblings.
    """
    lengths = []
    for row, stream in enumerate(streams):
        node, length = int(next_token[row, 0]), 1
        for token in stream.rest:
            while node >= 0 and draft_tokens[row, node] != token:
                node = int(next_sibling[row, node])
            if node < 0:
                break
            length += 1
            node = int(next_token[row, node])
        lengths.append(length)
    return lengths
