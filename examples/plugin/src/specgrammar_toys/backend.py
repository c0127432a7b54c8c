from collections.abc import Iterator, Sequence
from typing import Literal

from specgrammar.grammar.native import check_rollback
from specgrammar.grammar.plain import Bitmask, choices_of, own_grammar, write_row
from specgrammar.protocols.grammar import BackendFacts, GrammarSpec, Vocabulary


class ChoiceBackend:
    """A grammar backend that knows one kind of grammar: the output is one of several texts."""

    api_version: Literal[1] = 1
    facts = BackendFacts(None, True, frozenset(), frozenset(), kinds=frozenset({"choice"}))
    end = b"\xff"  # the "text" of stop tokens, behind each real one: no text in UTF-8 has this byte

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.ids = vocabulary, {self.end: list(vocabulary.stop_ids)}
        for token, text in enumerate(vocabulary.tokens):
            if self.end not in text and token not in vocabulary.special_ids:
                self.ids.setdefault(text, []).append(token)

    def compile(self, spec: GrammarSpec) -> "ChoiceMatcher":
        return ChoiceMatcher(self, spec, [{text.encode() + self.end for text in choices_of(spec, self.facts)}])

    def matcher(self, compiled: object) -> "ChoiceMatcher":
        return own_grammar(compiled, ChoiceMatcher).fork()

    def moves(self, rests: set[bytes]) -> Iterator[tuple[int, bytes]]:
        """The tokens that some text goes on with, each with the rest of that text behind it."""
        for rest in rests:
            yield from ((t, rest[n:]) for n in range(1, len(rest) + 1) for t in self.ids.get(rest[:n], ()))


class ChoiceMatcher:
    """One sequence: the rests of the texts behind each token so far. At its start, a compiled grammar, too."""

    def __init__(self, backend: ChoiceBackend, spec: GrammarSpec, rests: list[set[bytes]]) -> None:
        self.backend, self.spec, self.rests, self.weakened = backend, spec, rests, ()

    @property
    def finished(self) -> bool:
        return self.rests[-1] == {b""}

    def accept(self, token: int) -> bool:
        rests = {rest for legal, rest in self.backend.moves(self.rests[-1]) if legal == token}
        self.rests += [rests] if rests else []
        return bool(rests)

    def accept_prefix(self, tokens: Sequence[int]) -> int:
        return next((n for n, token in enumerate(tokens) if not self.accept(token)), len(tokens))

    def rollback(self, num_tokens: int) -> None:
        check_rollback(num_tokens, len(self.rests) - 1)
        del self.rests[len(self.rests) - num_tokens :]

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        write_row(bitmask, row, dict(self.backend.moves(self.rests[-1])), self.backend.vocabulary)

    def fork(self) -> "ChoiceMatcher":
        return ChoiceMatcher(self.backend, self.spec, self.rests[-1:])
