"""From a request to a session: its prompt is checked, its grammar fetched, its stop rules made."""

from __future__ import annotations

from dataclasses import dataclass

from specgrammar.errors import InvalidTokenError, RequestError
from specgrammar.grammar.compile_service import Ticket
from specgrammar.grammar.filling import as_request_error
from specgrammar.grammar.gate import Gate
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
    """

    vocabulary: Vocabulary
    backend: GrammarBackend
    max_length: int | None

    def session(self, request: Request, ticket: Ticket | None) -> tuple[GrammarSession, tuple[str, ...]]:
        """The session of a request, and the schema keywords that it does not enforce.

        Args:
            request: the request.
            ticket: for its grammar, waited for if it is not done; None if it has none.

        Raises SpecGrammarError for a request that cannot start.
        """
        self._check_prompt(request)
        matcher, weakened = self._matcher(ticket)
        session = GrammarSession(
            self.vocabulary,
            matcher,
            gate=Gate(request.grammar_start) if request.grammar_start else None,
            stops=StopRules(
                frozenset((*self.vocabulary.stop_ids, *request.stop_token_ids)),
                request.stop_strings,
                self._max_new_tokens(request),
            ),
        )
        return session, weakened

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
