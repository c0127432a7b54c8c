"""Matchers that keep their state wrongly: what is accepted, undone and forked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specgrammar.errors import MatcherError
from specgrammar.protocols.grammar import CompiledGrammar
from specgrammar.testing.checks.backend import check_it_equals_the_reference
from specgrammar.testing.checks.mask import check_bits_are_what_accept_takes
from specgrammar.testing.checks.matcher import (
    check_a_branch_sees_nothing_of_its_sibling,
    check_a_fork_may_forget_but_not_make_up_its_history,
    check_accept_prefix_is_accept_one_by_one,
    check_every_stop_id_ends,
    check_forks_are_independent,
    check_impossible_rollbacks_are_refused,
    check_matchers_share_no_state,
    check_rollback_equals_replay,
    check_special_ids_are_never_text,
    check_the_stop_token_is_one_step,
)
from specgrammar.testing.earley import EarleySet
from specgrammar.testing.reference import ReferenceBackend, ReferenceMatcher
from tests.conformance.broken.rejected import rejected


class FinishedIsKept(ReferenceMatcher):
    def rollback(self, num_tokens: int) -> None:
        was_finished = self._finished
        super().rollback(num_tokens)
        self._finished = was_finished


class FinishedIsForgotten(ReferenceMatcher):
    @property
    def finished(self) -> bool:
        return False


class FinishedTooEarly(ReferenceMatcher):
    @property
    def finished(self) -> bool:
        return self._finished or (self._history[-1].accepts and not self._history[-1].scans)


class StopIsNoStep(ReferenceMatcher):
    def accept(self, token: int) -> bool:
        accepted = super().accept(token)
        if accepted and self._finished:
            self._history.pop()
        return accepted

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        self._finished = self._finished and not num_tokens


class StopIsTwoSteps(ReferenceMatcher):
    def accept(self, token: int) -> bool:
        accepted = super().accept(token)
        if accepted and self._finished:
            self._history.append(self._history[-1])
        return accepted


class StopAnywhere(ReferenceMatcher):
    def accept(self, token: int) -> bool:
        if token in self._vocabulary.stop_ids and not self._finished:
            self._history.append(self._history[-1])
            self._finished = True
            return True
        return super().accept(token)


class StopIsAlwaysLegal(ReferenceMatcher):
    def _after(self, token: int) -> EarleySet | None:
        if token in self._vocabulary.stop_ids and not self._finished:
            return self._history[-1]
        return super()._after(token)


class FirstStopOnly(ReferenceMatcher):
    def _after(self, token: int) -> EarleySet | None:
        return None if token in self._vocabulary.stop_ids[1:] else super()._after(token)


class SpecialIsText(ReferenceMatcher):
    """Tokens are looked up by their bytes, whatever their id is."""

    hidden = "special_ids"

    def _after(self, token: int) -> EarleySet | None:
        found = super()._after(token)
        vocabulary = self._vocabulary
        if found is None and not self._finished and token in getattr(vocabulary, self.hidden):
            text = vocabulary.tokens[token]
            twins = [i for i, other in enumerate(vocabulary.tokens) if other == text and i != token]
            return super()._after(twins[0]) if text and twins else None
        return found


class StopIsText(SpecialIsText):
    hidden = "stop_ids"


class ResetByZero(ReferenceMatcher):
    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self._history):
            raise MatcherError("cannot")
        start, *states = self._history
        self._history = [start, *states[:-num_tokens]]
        self._finished = False


class ZeroUnfinishes(ReferenceMatcher):
    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        self._finished = False


class TooManyPass(ReferenceMatcher):
    def rollback(self, num_tokens: int) -> None:
        super().rollback(min(num_tokens, len(self._history) - 1))


class NegativePasses(ReferenceMatcher):
    def rollback(self, num_tokens: int) -> None:
        if num_tokens > 0:
            super().rollback(num_tokens)


class RefusesHalfWay(ReferenceMatcher):
    """Clears the history up to where it is refused, and raises then."""

    def rollback(self, num_tokens: int) -> None:
        for _ in range(num_tokens):
            super().rollback(1)
        super().rollback(min(0, num_tokens))


class MovesThoughItRefuses(ReferenceMatcher):
    def accept(self, token: int) -> bool:
        if super().accept(token):
            return True
        if not self._finished and 0 <= token < self._vocabulary.vocab_size:
            for byte in self._vocabulary.tokens[token]:
                if after := self._parser.step(self._history[-1], byte):
                    self._history[-1] = after
        return False


class WrapsAround(ReferenceMatcher):
    def _after(self, token: int) -> EarleySet | None:
        return super()._after(token + self._vocabulary.vocab_size if token < 0 else token)


class RaisesOutside(ReferenceMatcher):
    def _after(self, token: int) -> EarleySet | None:
        self._vocabulary.tokens[token]
        return super()._after(token)


class PrefixOneLate(ReferenceMatcher):
    def accept_prefix(self, tokens: Sequence[int]) -> int:
        return min(super().accept_prefix(tokens) + 1, len(tokens))


class PrefixAllOrNothing(ReferenceMatcher):
    def accept_prefix(self, tokens: Sequence[int]) -> int:
        num_accepted = super().accept_prefix(tokens)
        return num_accepted if num_accepted == len(tokens) else 0


class PrefixBehindTheStop(ReferenceMatcher):
    def accept_prefix(self, tokens: Sequence[int]) -> int:
        num_accepted = super().accept_prefix(tokens)
        return len(tokens) if self._finished else num_accepted


class PrefixIsOneStep(ReferenceMatcher):
    def accept_prefix(self, tokens: Sequence[int]) -> int:
        before = len(self._history)
        num_accepted = super().accept_prefix(tokens)
        del self._history[before:-1]
        return num_accepted


class ForkSharesItsHistory(ReferenceMatcher):
    def fork(self) -> ReferenceMatcher:
        copy = super().fork()
        copy._history = self._history
        return copy


class ForkIsItself(ReferenceMatcher):
    def fork(self) -> ReferenceMatcher:
        return self


class ForkIsFresh(ReferenceMatcher):
    def fork(self) -> ReferenceMatcher:
        return type(self)(self._parser, self._vocabulary)


class ForkIsNotFinished(ReferenceMatcher):
    def fork(self) -> ReferenceMatcher:
        copy = super().fork()
        copy._finished = False
        return copy


class ForkMakesUpItsHistory(ReferenceMatcher):
    def fork(self) -> ReferenceMatcher:
        copy = super().fork()
        copy._history = [self._parser.start] * (len(self._history) - 1) + [self._history[-1]]
        return copy


class RemembersItsLastMask(ReferenceMatcher):
    """By how much has been parsed, as llguidance does; a rollback and another token give the same again."""

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        remembered: dict[int, Any] = self.__dict__.setdefault("_masks", {})
        depth = len(self._history) + self._finished
        if depth in remembered:
            bitmask[row] = remembered[depth]
            return
        super().fill_bitmask(bitmask, row)
        remembered[depth] = bitmask[row].copy()


class OneMatcherForAll(ReferenceBackend):
    def matcher(self, compiled: CompiledGrammar) -> ReferenceMatcher:
        made: dict[CompiledGrammar, ReferenceMatcher] = self.__dict__.setdefault("_made", {})
        return made.setdefault(compiled, super().matcher(compiled))


class SharedHistory(ReferenceBackend):
    """The history lies in the compiled grammar."""

    def matcher(self, compiled: CompiledGrammar) -> ReferenceMatcher:
        histories: dict[CompiledGrammar, Any] = self.__dict__.setdefault("_histories", {})
        made = super().matcher(compiled)
        made._history = histories.setdefault(compiled, made._history)
        return made


_STOP = check_the_stop_token_is_one_step
_PREFIX = check_accept_prefix_is_accept_one_by_one
_FORK = check_forks_are_independent
_BITS = check_bits_are_what_accept_takes
_REFUSED = check_impossible_rollbacks_are_refused

BROKEN_MATCHERS = [
    rejected(fault, make, check, finds)
    for fault, make, check, finds in (
        (
            "`rollback` keeps `finished`",
            FinishedIsKept,
            _STOP,
            r"finished after rollback\(1\) behind the stop token is True",
        ),
        (
            "a wrapper forgets `finished`",
            FinishedIsForgotten,
            _STOP,
            "finished is false behind",
        ),
        ("`finished` before the stop token", FinishedTooEarly, _STOP, "no stop token was"),
        (
            "the stop token is no step",
            StopIsNoStep,
            _STOP,
            r"rollback\(1\)",
        ),
        (
            "the stop token is two steps",
            StopIsTwoSteps,
            _STOP,
            r"after rollback\(\d\) behind the stop token",
        ),
        (
            "a stop token is taken anywhere",
            StopAnywhere,
            _STOP,
            "taken where its bit is not set",
        ),
        (
            "a stop token is legal anywhere",
            StopIsAlwaysLegal,
            check_it_equals_the_reference,
            "the reference's are",
        ),
        (
            "only the first stop id ends",
            FirstStopOnly,
            check_every_stop_id_ends,
            "legal stop ids",
        ),
        (
            "a special id is legal as text",
            SpecialIsText,
            check_special_ids_are_never_text,
            r"special 'a' \(20\)\] is legal in the middle",
        ),
        (
            "a stop id is legal as text",
            StopIsText,
            check_special_ids_are_never_text,
            r"stop 'c' \(19\)\] is legal in the middle",
        ),
        (
            "`rollback(0)` resets",
            ResetByZero,
            check_rollback_equals_replay,
            r"after rollback\(0\), behind \[.*the legal tokens are",
        ),
        (
            "`rollback(0)` undoes the end",
            ZeroUnfinishes,
            _STOP,
            r"finished after rollback\(0\) behind the stop token is False",
        ),
        (
            "a rollback of too many passes",
            TooManyPass,
            _REFUSED,
            r"rollback\(1\).*raised nothing",
        ),
        (
            "a negative rollback passes",
            NegativePasses,
            _REFUSED,
            r"rollback\(-1\).*raised nothing",
        ),
        (
            "a rollback that is refused was half done",
            RefusesHalfWay,
            _REFUSED,
            r"after rollback\(\d+\) was refused",
        ),
        (
            "`accept` moves and refuses",
            MovesThoughItRefuses,
            _BITS,
            "was refused, the legal tokens",
        ),
        ("`accept(-1)` wraps around", WrapsAround, _BITS, r"accept\(id -\d+\) is taken"),
        ("`accept` raises for foreign ids", RaisesOutside, _BITS, "IndexError"),
        (
            "`accept_prefix` stops one late",
            PrefixOneLate,
            _PREFIX,
            r"accept_prefix\(.*\) behind .* is (\d); expected (?!\1)\d",
        ),
        (
            "`accept_prefix` is all or nothing",
            PrefixAllOrNothing,
            _PREFIX,
            r"accept_prefix\(.*\) behind .* is 0; expected",
        ),
        (
            "`accept_prefix` goes on behind the stop",
            PrefixBehindTheStop,
            _PREFIX,
            r"accept_prefix\(.*stop \(16\).* is \d; expected \d",
        ),
        (
            "`accept_prefix` is one step",
            PrefixIsOneStep,
            _PREFIX,
            r"MatcherError: rollback\(\d\)",
        ),
        ("a fork shares its history", ForkSharesItsHistory, _FORK, "the other one was moved"),
        ("a fork is the original", ForkIsItself, _FORK, "the other one was moved"),
        ("a fork begins anew", ForkIsFresh, _FORK, "in a fork, behind"),
        ("a fork forgets the end", ForkIsNotFinished, _FORK, "finished in a fork"),
        (
            "a fork makes up its history",
            ForkMakesUpItsHistory,
            check_a_fork_may_forget_but_not_make_up_its_history,
            r"after rollback\(\d\) of a fork",
        ),
        (
            "the last mask is remembered across a rollback",
            RemembersItsLastMask,
            check_a_branch_sees_nothing_of_its_sibling,
            "in a branch, behind",
        ),
        (
            "one matcher for all of a grammar",
            OneMatcherForAll,
            check_matchers_share_no_state,
            "after another one accepted",
        ),
        (
            "matchers share the history of their grammar",
            SharedHistory,
            check_matchers_share_no_state,
            "after another one accepted",
        ),
    )
]
