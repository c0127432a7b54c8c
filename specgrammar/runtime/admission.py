"""From a request to a session: its prompt is checked, its grammar fetched, its stop rules made."""

from __future__ import annotations

from dataclasses import dataclass

from specgrammar.checks import show
from specgrammar.errors import ConfigError, InvalidTokenError, RequestError
from specgrammar.grammar.compile_service import Ticket
from specgrammar.grammar.filling import as_request_error
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.stops import StopRules
from specgrammar.protocols.grammar import GrammarBackend, GrammarMatcher, Vocabulary
from specgrammar.runtime.request import Request


@dataclass(frozen=True)
class Admission:
    """Makes the sessions of an engine.

    Attributes:
        vocabulary: the target's.
        backend: makes matchers.
        max_length: most tokens of a request that the target can place; None for no limit.
        deepest_undo: most tokens that a step takes back.
    """

    vocabulary: Vocabulary
    backend: GrammarBackend
    max_length: int | None
    deepest_undo: int

    def session(self, request: Request, ticket: Ticket | None) -> tuple[GrammarSession, tuple[str, ...]]:
        """The session of a request, and the schema keywords that it does not enforce.

        Args:
            request: the request.
            ticket: for its grammar, waited for if it is not done; None if it has none.

        Raises SpecGrammarError for a request that cannot start.
        """
        self._check_prompt(request)
        matcher, weakened = self._matcher(ticket)
        stops = StopRules(
            frozenset((*self.vocabulary.stop_ids, *request.stop_token_ids)),
            request.stop_strings,
            self._max_new_tokens(request),
        )
        try:
            session = GrammarSession(
                self.vocabulary,
                matcher,
                gate=request.gate,
                stops=stops,
                prompt_tokens=request.prompt_tokens,
            )
        except ConfigError as error:
            assert request.grammar is not None
            constraint = f"{request.grammar.kind} {show(request.grammar.source)}"
            raise RequestError(f"grammar_start: {error} (with the {constraint})") from error
        self._check_undo(session)
        return session, weakened

    def _check_undo(self, session: GrammarSession) -> None:
        """The step that opens a gate moves the grammar by all that the gate carries, and may be taken back."""
        limit, gate = self.backend.facts.max_rollback, session.cursor and session.cursor.gate
        longest = max(map(len, gate.starts), default=0) if gate else 0
        if limit is not None and self.deepest_undo + longest > limit:
            raise RequestError(
                f"grammar_start: the backend can undo {limit} tokens, but an implicit marker of {longest} "
                f"before {self.deepest_undo} drafts needs {self.deepest_undo + longest}; draft less deep, "
                "or use another backend"
            )

    def _matcher(self, ticket: Ticket | None) -> tuple[GrammarMatcher | None, tuple[str, ...]]:
        if ticket is None:
            return None, ()
        compiled = ticket.result()
        try:
            return self.backend.matcher(compiled), compiled.weakened
        except Exception as error:
            raise as_request_error(error) from error

    def _max_new_tokens(self, request: Request) -> int:
        """What fits behind the prompt: the last token is never cached. `target.add` refuses longer prompts."""
        limit = self.max_length
        num_free = request.max_new_tokens if limit is None else limit - len(request.prompt_tokens) + 1
        return max(1, min(request.max_new_tokens, num_free))

    def _check_prompt(self, request: Request) -> None:
        if not request.prompt_tokens:
            raise RequestError(f"request {request.request_id!r}: the prompt is empty; give at least one token")
        for position, token in enumerate(request.prompt_tokens):
            if not 0 <= token < self.vocabulary.vocab_size:
                raise InvalidTokenError(
                    f"request {request.request_id!r}: prompt token {position} has the id {token}, outside "
                    f"[0, {self.vocabulary.vocab_size}); encode the prompt with the model's tokenizer"
                )
