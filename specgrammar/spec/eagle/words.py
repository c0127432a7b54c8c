"""`DraftWords`: which tokens a head may draft for each request, and the best of them.

A reduced draft vocabulary holds a language's frequent tokens. What a request's own text is made of, its prompt
and what the prompt says of the schema, is drafted as well: names and values are copied from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specgrammar.spec.eagle.head import DraftVocabulary, EagleHead


class DraftWords:
    """The head's draft vocabulary, and each row's own tokens beside it."""

    def __init__(self, head: EagleHead, vocab_size: int) -> None:
        """No row has tokens of its own; ids from `vocab_size` on (padded embeddings) are no tokens."""
        self._head = head
        self._common = head.draft_ids[head.draft_ids < vocab_size]
        self._own: dict[int, Tensor] = {}
        self._vocabulary: DraftVocabulary | None = None
        self._allowed: dict[int, Tensor] = {}

    @property
    def num_common(self) -> int:
        """How many tokens every request may be drafted."""
        return len(self._common)

    def put(self, row: int, tokens: Sequence[int]) -> None:
        """Give a row its tokens, in place of those that it had."""
        own = torch.tensor(list(tokens), dtype=torch.int64, device=self._common.device)
        self._own[row] = torch.unique(own)
        self._vocabulary = None

    def best(
        self, rows: Sequence[int], outputs: Tensor, count: int, legal: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The likeliest tokens behind some nodes.

        Args:
            rows: int `[b]`.
            outputs: the head's, `[b, q, hidden_size]`.
            count: how many; where fewer may be drafted, the rest have -inf.
            legal: bool `[b, q, vocab_size]`, what may follow; None for everything.

        Returns:
            Ids int64 `[b, q, count]` and log-probabilities float32 of the same shape, among what may be
            drafted.
        """
        vocabulary = self._all_words()
        logits = self._head.logits(outputs, vocabulary).float()
        allowed = torch.stack([self._allowed[row] for row in rows])[:, None]
        if legal is not None:
            allowed = allowed & legal[:, :, vocabulary.ids]
        logprobs = logits.masked_fill_(~allowed, -torch.inf).log_softmax(dim=-1)
        # Where nothing may be drafted a row is all NaN; so is one of broken weights.
        scores, index = logprobs.nan_to_num_(nan=-torch.inf, neginf=-torch.inf).topk(count, dim=-1)
        return vocabulary.ids[index], scores

    def _all_words(self) -> DraftVocabulary:
        """The words of all rows; made when a row's tokens change, not in each step."""
        if self._vocabulary is None:
            ids = torch.unique(torch.cat((self._common, *self._own.values())))
            self._vocabulary = self._head.rows_of(ids)
            common = torch.isin(self._vocabulary.ids, self._common)
            self._allowed = {
                row: common | torch.isin(self._vocabulary.ids, own) for row, own in self._own.items()
            }
        return self._vocabulary
