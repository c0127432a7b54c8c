"""A speculative algorithm of specgrammar as vLLM's proposer.

    LLM(..., scheduler_cls="specgrammar_vllm.Scheduler", async_scheduling=False,
        speculative_config={"method": "custom_class", "model": "specgrammar_vllm.Proposer",
                            "num_speculative_tokens": 5},
        additional_config={"specgrammar": {"algorithm": "ngram", "algorithm_options": {...}}})

It runs in vLLM's worker, behind each step, where no grammar is known; the scheduler cuts what it proposes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import eq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import ConfigError
from specgrammar.protocols.spec import Commit, DecodeBatch, ProducerContext, Proposal, RequestView
from specgrammar.registry import ALGORITHMS, create
from specgrammar.runtime.device import device_for
from specgrammar.spec.sampling import SamplingParams
from specgrammar_vllm.flatten import chains_of
from specgrammar_vllm.histories import Histories
from specgrammar_vllm.options import Options
from specgrammar_vllm.vocabularies import as_specgrammar_reads_it

_SAMPLING = SamplingParams()
"""vLLM does not say how a request samples, and what is chosen and not drawn does not depend on it."""


class ChainProducer:
    """A producer behind the call that vLLM makes; all but the making of it."""

    supports_trees: bool = False
    """vLLM 0.32 verifies chains: of a tree the most probable one is proposed."""
    supports_resample: bool = False
    """Nor does it draw again: no algorithm that samples its proposals."""

    def __init__(self, options: Options, context: ProducerContext, num_tokens: int, max_length: int) -> None:
        """Build the producer.

        Args:
            options: names the algorithm.
            context: what the engine gives to it.
            num_tokens: most drafts of a request.
            max_length: most tokens of a request.

        Raises:
            PluginError: there is no such algorithm.
            ConfigError: it cannot work here, or its options are impossible.
        """
        chosen = {"num_draft_tokens": num_tokens, "depth": num_tokens, "breadth": 1}
        name = options.algorithm or "ngram"
        algorithm = create(
            ALGORITHMS, name, **(options.algorithm_options if options.algorithm is not None else chosen)
        )
        if algorithm.proposal is not Proposal.POINT:
            raise ConfigError(
                f"the algorithm {name!r} samples its proposals, which vLLM verifies as if they were chosen; "
                "use one that chooses them, or specgrammar's own engine"
            )
        self._producer = algorithm.make_producer(context)
        if self._producer.needs == "grammar":
            raise ConfigError(
                f"the algorithm {name!r} needs the grammar, which vLLM shows to no proposer; what a "
                "grammar forces the scheduler adds itself (forced_drafts), to 'none' as to any other algorithm"
            )
        self._num_tokens, self._max_length = num_tokens, max_length
        self._histories = Histories()
        self._step = 0

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: object = None,  # noqa: ARG002  # vLLM passes it to every proposer
    ) -> list[list[int]]:
        """Draft behind what a step committed: a list for each row, empty where there is nothing to say."""
        num_tokens = num_tokens_no_spec[: len(sampled_token_ids)].tolist()
        gone, going_on = self._histories.update(sampled_token_ids, num_tokens, token_ids_cpu)
        commits = [Commit(history.request_id, (), 0, 0, finished=True) for history in gone]
        for row, history in going_on.items():
            tokens = sampled_token_ids[row]
            commits.append(
                Commit(
                    history.request_id,
                    tuple(tokens),
                    len(history.drafts),
                    _num_agreeing(tokens[:-1], history.drafts),
                    finished=False,
                )
            )
        if commits:
            self._producer.observe(commits)
        rows = self._histories.rows
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if rows:
            for row, chain in zip(rows, self._draft(list(rows.values())), strict=True):
                drafts[row] = chain
                rows[row].drafts = chain
        return drafts

    def _draft(self, histories: Sequence[Any]) -> list[list[int]]:
        views = tuple(
            RequestView(
                history.request_id,
                history.tokens,
                history.num_prompt_tokens,
                max(0, min(self._num_tokens, self._max_length - len(history.tokens))),
                _SAMPLING,
            )
            for history in histories
        )
        self._step += 1
        tree = self._producer.propose(DecodeBatch(self._step, views))
        return [chain[: view.max_draft_tokens] for chain, view in zip(chains_of(tree), views, strict=True)]


def _num_agreeing(tokens: Sequence[int], drafts: Sequence[int]) -> int:
    """How many drafts were accepted: vLLM's scheduler may have cut them, and added others behind."""
    return sum(takewhile(bool, map(eq, tokens, drafts)))


class Proposer(ChainProducer):
    """vLLM's custom proposer class; see the module."""

    def __init__(self, vllm_config: Any) -> None:
        """Build the algorithm that `additional_config` names; nothing of vLLM's configuration reaches it."""
        from vllm.tokenizers import (  # pyright: ignore[reportMissingImports]  # in vLLM's environment only
            cached_tokenizer_from_config,
        )

        from specgrammar_vllm import engine

        engine.check([engine.proposer_expectation()])
        model = vllm_config.model_config
        vocabulary = as_specgrammar_reads_it(cached_tokenizer_from_config(model), model.get_vocab_size(), ())
        context = ProducerContext(vocabulary, vllm_config.scheduler_config.max_num_seqs, device_for("cpu"))
        super().__init__(
            Options.of(vllm_config.additional_config),
            context,
            vllm_config.speculative_config.num_speculative_tokens,
            model.max_model_len,
        )

    def load_model(self, *args: object, **kwargs: object) -> None:
        """Nothing to load: what an algorithm needs it has loaded already."""
