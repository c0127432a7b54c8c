"""Any grammar backend of specgrammar as vLLM's `StructuredOutputBackend`."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from specgrammar.errors import ConfigError
from specgrammar.grammar.compile_service import CompileService
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import GrammarBackend, Vocabulary
from specgrammar.registry import BACKENDS, create
from specgrammar_vllm import versions
from specgrammar_vllm.grammar import SessionGrammar
from specgrammar_vllm.kinds import spec_of
from specgrammar_vllm.options import Options
from specgrammar_vllm.vocabularies import as_specgrammar_reads_it, as_vllm_reads_it

if TYPE_CHECKING:
    import torch

    from specgrammar.protocols.grammar import Whitespace

_log = logging.getLogger(__name__)

_MAX_STOP_SETS = 8
"""Different sets of stop ids with a compiler of their own; the one that was not used for longest goes first."""


class NamedKind(Protocol):
    """A member of vLLM's `StructuredOutputOptions`."""

    @property
    def name(self) -> str:
        """One of `kinds.KINDS`."""
        ...


@dataclass(frozen=True)
class _Site:
    """A compiler: a backend is bound to a vocabulary, and a vocabulary says what ends a sequence."""

    vocabulary: Vocabulary
    backend: GrammarBackend
    service: CompileService


class SessionBackend:
    """Compiles for vLLM's manager, which calls it from a pool of threads.

    vLLM lets each request have stop ids of its own, which are legal where its grammar may end. There is a site
    for each set of them; nearly all requests have the same.
    """

    def __init__(
        self, options: Options, tokenizer: Any, vocab_size: int, *, compact_json: bool, max_drafts: int
    ) -> None:
        """Build the compiler for requests with the tokenizer's own end of sequence.

        Args:
            options: names the backend.
            tokenizer: vLLM's.
            vocab_size: columns of the model's logits.
            compact_json: JSON without whitespace, vLLM's `disable_any_whitespace`; else the model is free.
            max_drafts: the longest chain that is walked.

        Raises:
            PluginError: there is no such backend, or its library has another version than it was tested with.
            ConfigError: it cannot do what is asked.
            ModelError: the tokenizer cannot be read.
        """
        if options.backend in versions.SUPPORTED:
            versions.check(options.backend)
        self.tokenizer: Any = tokenizer
        self.vocab_size: int = vocab_size
        self._options = options
        self._whitespace: Whitespace = "compact" if compact_json else "flexible"
        self._sites: OrderedDict[frozenset[int], _Site] = OrderedDict()
        self._lock = Lock()
        end = getattr(tokenizer, "eos_token_id", None)
        facts = self._site(frozenset() if end is None else frozenset({end})).backend.facts
        if facts.max_rollback is not None and facts.max_rollback < max_drafts:
            raise ConfigError(
                f"the backend {options.backend!r} can take back {facts.max_rollback} tokens, and vLLM drafts "
                f"{max_drafts}; set num_speculative_tokens to {facts.max_rollback} or less"
            )

    def compile_grammar(
        self, request_type: NamedKind, grammar_spec: str, stop_token_ids: set[int] | None = None
    ) -> SessionGrammar:
        """A grammar at its start; raises GrammarCompileError, which fails the request alone."""
        site = self._site(frozenset(stop_token_ids or ()))
        options = self._options
        spec = spec_of(
            request_type.name,
            grammar_spec,
            whitespace=self._whitespace,
            allow_weakened=options.takes_weakened,
            takes_tags=options.as_vllm,
        )
        compiled = site.service.submit(spec).result()
        if compiled.weakened:
            _log.warning("specgrammar: not enforced of a JSON Schema: %s", ", ".join(compiled.weakened))
        return SessionGrammar(GrammarSession(site.vocabulary, site.backend.matcher(compiled)))

    def allocate_token_bitmask(self, max_num_seqs: int) -> torch.Tensor:
        """Rows of ones, int32 `[max_num_seqs, ceil(vocab_size / 32)]`."""
        import torch

        return torch.full((max_num_seqs, (self.vocab_size + 31) // 32), -1, dtype=torch.int32)

    def destroy(self) -> None:
        """End what compiles."""
        with self._lock:
            for site in self._sites.values():
                site.service.close()
            self._sites.clear()

    def _site(self, stop_ids: frozenset[int]) -> _Site:
        with self._lock:
            site = self._sites.get(stop_ids)
            if site is None:
                site = self._sites[stop_ids] = self._build(stop_ids)
                if len(self._sites) > _MAX_STOP_SETS:
                    self._sites.popitem(last=False)
            self._sites.move_to_end(stop_ids)
            return site

    def _build(self, stop_ids: frozenset[int]) -> _Site:
        options = self._options
        read = as_vllm_reads_it if options.as_vllm else as_specgrammar_reads_it
        vocabulary = read(self.tokenizer, self.vocab_size, stop_ids)
        backend_options = {**({"frontend": "native"} if options.as_vllm else {}), **options.backend_options}
        backend = create(BACKENDS, options.backend, vocabulary, **backend_options)
        service = CompileService(
            backend,
            options=backend_options,
            timeout_s=options.compile_timeout_s,
            memory_bytes=options.compile_memory_mb << 20,
        )
        return _Site(vocabulary, backend, service)
