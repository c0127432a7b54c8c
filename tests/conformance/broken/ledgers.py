"""Ledgers, each with one fault."""

from __future__ import annotations

from collections.abc import Sequence

from specgrammar.errors import SpecGrammarError
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.spec import Commit
from specgrammar.protocols.staging import Launched
from specgrammar.runtime.ledger import Entry, Ledger, RequestResult, StepResult
from specgrammar.testing.checks.ledger import LEDGER_CHECKS
from tests.conformance.cases import Broken


class OpenLedger(Ledger):
    """The same ledger, cut into the parts that the others replace."""

    def resolve(self) -> None:
        while self._published:
            try:
                step_result = self.wait_for(self._published[0])
            except Exception:
                self.drop_failed()
                raise
            self._published.popleft()
            self.take(step_result)

    def wait_for(self, published: Launched[StepResult]) -> StepResult:
        return published.wait()

    def drop_failed(self) -> None:
        self._published.popleft()

    def take(self, step_result: StepResult) -> None:
        for result in step_result.results:
            entry = self.entries.get(result.request_id)
            if entry is None or self.is_stale(step_result.step, entry):
                self.num_stale += 1
            else:
                entry.last_step = step_result.step
                self._commits.append(self._apply(entry, result))

    def is_stale(self, step: int, entry: Entry) -> bool:
        return step < entry.joined or step <= entry.last_step or entry.session.finish is not None


class KeepsTheWholePath(Ledger):
    def _apply(self, entry: Entry, result: RequestResult) -> Commit:
        commit = super()._apply(entry, result)
        entry.tokens.extend(result.tokens[len(commit.tokens) :])
        return commit


class CommitsTheWholePath(Ledger):
    def _apply(self, entry: Entry, result: RequestResult) -> Commit:
        commit = super()._apply(entry, result)
        return Commit(
            commit.request_id, result.tokens, commit.num_draft_tokens, commit.num_accepted, commit.finished
        )


class CountsTheBonusToken(Ledger):
    def _apply(self, entry: Entry, result: RequestResult) -> Commit:
        commit = super()._apply(entry, result)
        return Commit(
            commit.request_id, commit.tokens, commit.num_draft_tokens, len(commit.tokens), commit.finished
        )


class LogprobsOfAll(Ledger):
    def _apply(self, entry: Entry, result: RequestResult) -> Commit:
        commit = super()._apply(entry, result)
        entry.logprobs.extend((result.logprobs or ())[len(commit.tokens) :])
        return commit


class GoesOnWithoutAToken(Ledger):
    def _apply(self, entry: Entry, result: RequestResult) -> Commit:
        return super()._apply(
            entry, RequestResult(result.request_id, result.tokens, result.num_draft_tokens, True)
        )


class GrammarMovesAtEachCall(Ledger):
    def advance_pending(self) -> None:
        for entry in self.entries.values():
            entry.session._num_advanced = 0
        super().advance_pending()


class GrammarOnly(Ledger):
    def advance_pending(self) -> None:
        for entry in self.entries.values():
            entry.session.advance()


class LeavesMovesAhead(Ledger):
    def advance_pending(self) -> None:
        self.resolve()
        for entry in self.entries.values():
            if entry.session._num_advanced < len(entry.session.output):
                entry.session.advance()


class HandsOutAgain(Ledger):
    def take_commits(self) -> list[Commit]:
        return list(self._commits)


class NewestFirst(Ledger):
    def take_commits(self) -> list[Commit]:
        return sorted(super().take_commits(), key=lambda commit: commit.request_id)


class TakesEarlierSteps(OpenLedger):
    def is_stale(self, step: int, entry: Entry) -> bool:
        return step == entry.last_step or entry.session.finish is not None


class TakesStepsTwice(OpenLedger):
    def is_stale(self, step: int, entry: Entry) -> bool:
        return step < entry.joined or entry.session.finish is not None


class TakesResultsOfTheEnded(OpenLedger):
    def is_stale(self, step: int, entry: Entry) -> bool:
        return step < entry.joined or step <= entry.last_step


class DropsSilently(OpenLedger):
    def take(self, step_result: StepResult) -> None:
        num_stale = self.num_stale
        super().take(step_result)
        self.num_stale = num_stale


class RejoinsWhereItWas(Ledger):
    def rejoin(self, request_id: str, entry: Entry, step: int) -> None:  # noqa: ARG002  # the fault
        super().rejoin(request_id, entry, entry.joined)


class WaitsInPublish(Ledger):
    def publish(self, result: Launched[StepResult]) -> None:
        result.wait()
        super().publish(result)


class TakesWhatIsDone(Ledger):
    def resolve(self) -> None:
        if all(result.done() for result in self._published):
            super().resolve()


class AsksTooEarly(OpenLedger):
    def wait_for(self, published: Launched[StepResult]) -> StepResult:
        return published.value()


class WaitsForNobody(Ledger):
    def leave(self, request_id: str) -> None:
        self.entries.pop(request_id, None)


class DropsTheQueue(OpenLedger):
    def drop_failed(self) -> None:
        self._published.clear()


class RaisesForEver(OpenLedger):
    def drop_failed(self) -> None:
        """Leaves the failed step where it is."""


class SwallowsFailures(OpenLedger):
    def wait_for(self, published: Launched[StepResult]) -> StepResult:
        try:
            return published.wait()
        except Exception:
            return StepResult(0, ())


class StopsAtAFailure(OpenLedger):
    def take(self, step_result: StepResult) -> None:
        for result in step_result.results:
            super().take(StepResult(step_result.step, (result,)))
            entry = self.entries.get(result.request_id)
            if entry is not None and entry.session.error is not None:
                break


class RaisesForOne(Ledger):
    def _apply(self, entry: Entry, result: RequestResult) -> Commit:
        commit = super()._apply(entry, result)
        if entry.session.error is not None:
            raise SpecGrammarError(f"request {result.request_id!r}: {entry.session.error}")
        return commit


class LastOneWins(Ledger):
    def join(self, request_id: str, prompt_tokens: Sequence[int], session: GrammarSession, step: int) -> Entry:
        self.entries.pop(request_id, None)
        return super().join(request_id, prompt_tokens, session, step)


class ForgetsOlderJoins(OpenLedger):
    """A result of a request that left moves the one that has its id now."""

    def is_stale(self, step: int, entry: Entry) -> bool:
        return step <= entry.last_step or entry.session.finish is not None


END, ONCE, FAILED = "nothing_behind_the_end_is_kept", "each_step_counts_once", "a_failed_step_is_told_once"
ALONE, LATE, MOVES = (
    "a_failure_stays_with_its_request",
    "late_results_are_waited_for_in_resolve",
    "the_grammar_follows_the_history",
)
ANY = "any_order_of_calls"

BROKEN_LEDGERS = [
    Broken(fault, LEDGER_CHECKS, make, f"check_{check}", finds)
    for fault, make, check, finds in (
        (
            "tokens behind the end stay in the history",
            KeepsTheWholePath,
            END,
            "meets the stop token at 0, the history",
        ),
        ("tokens behind the end are committed", CommitsTheWholePath, END, "stop token at 0, the commits"),
        ("logprobs behind the end are kept", LogprobsOfAll, END, "stop token at 0, the logprobs"),
        (
            "the bonus token counts as accepted",
            CountsTheBonusToken,
            "a_result_moves_the_history",
            "num_accepted=3.*expected.*num_accepted=2",
        ),
        (
            "a request without a token goes on",
            GoesOnWithoutAToken,
            ALONE,
            "no bonus token.* is None; expected error",
        ),
        (
            "the grammar moves again at each call",
            GrammarMovesAtEachCall,
            MOVES,
            "finish is error; expected None",
        ),
        (
            "the grammar is advanced without its history",
            GrammarOnly,
            MOVES,
            r"after advance_pending, the output is \[\]",
        ),
        (
            "moves ahead are left where nothing came",
            LeavesMovesAhead,
            "moves_ahead_are_taken_back",
            r"\[\] was committed, behind \[\] the grammar allows",
        ),
        (
            "commits are handed out again",
            HandsOutAgain,
            "commits_are_handed_out_once",
            r"take_commits\(\) of nothing new",
        ),
        ("commits in the order of ids", NewestFirst, "commits_are_handed_out_once", "behind three steps"),
        ("results of earlier steps are taken", TakesEarlierSteps, ONCE, "expected"),
        ("a step's result is taken twice", TakesStepsTwice, ONCE, "after `resolve`, the output is"),
        (
            "a later request gets its id's old results",
            ForgetsOlderJoins,
            "results_of_who_left_are_dropped",
            "of the later request of its id, the output",
        ),
        (
            "results of an ended request are taken",
            TakesResultsOfTheEnded,
            "results_of_the_ended_are_dropped",
            "num_stale .* is 0; expected 1",
        ),
        ("results are dropped and not counted", DropsSilently, ONCE, "num_stale is 0; expected"),
        (
            "a request comes back with its old step",
            RejoinsWhereItWas,
            "results_of_who_left_are_dropped",
            "had a break",
        ),
        ("`publish` waits", WaitsInPublish, LATE, "`publish` waited for is 1; expected 0"),
        (
            "`resolve` takes what is done",
            TakesWhatIsDone,
            LATE,
            r"of a result that was on its way.* output is \[\]",
        ),
        ("`resolve` asks before it waited", AsksTooEarly, LATE, "'step' was read before it was done"),
        (
            "results for nobody are waited for",
            WaitsForNobody,
            "nobody_waits_when_all_have_left",
            "is_resolved after the last request left is False",
        ),
        (
            "a failed step takes the queue with it",
            DropsTheQueue,
            FAILED,
            "is_resolved with a result queued behind one that raised is True",
        ),
        (
            "a failed step fails for ever",
            RaisesForEver,
            FAILED,
            "StepFailedError: the forward ran out of memory",
        ),
        ("a failed step is not told", SwallowsFailures, FAILED, "raised nothing; expected StepFailedError"),
        (
            "one request's failure drops those behind it",
            StopsAtAFailure,
            ALONE,
            r"beside a request .* output is \[\]",
        ),
        ("one request's failure is raised to all", RaisesForOne, ALONE, "SpecGrammarError: request 'b'"),
        (
            "an id in flight is taken by the next",
            LastOneWins,
            "ids_in_flight_are_unique",
            "raised nothing; expected ConfigError",
        ),
    )
]
