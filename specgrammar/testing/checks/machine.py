"""A state machine that plays a backend's matchers against the reference's: whatever is called, they are equal.

    TestMine = matcher_machine(MyBackend).TestCase

is a test for pytest, which explores anew at each run; the check of the kit plays the same examples each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, reject, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from specgrammar.errors import ConformanceError, GrammarCompileError
from specgrammar.protocols.grammar import GrammarMatcher
from specgrammar.testing.checks.base import Story, expect, same, telling
from specgrammar.testing.checks.walking import MakeBackend, legal_ids, undoable
from specgrammar.testing.reference import ReferenceBackend, ReferenceMatcher
from specgrammar.testing.strategies import any_ids, grammar_specs
from specgrammar.testing.toys import TWO_STOPS, for_reference, text_of, texts_of

_MOST_MATCHERS = 3


@dataclass
class _Pair:
    """A matcher, the reference's in the same state, and how many tokens the matcher has to be able to undo."""

    name: str
    matcher: GrammarMatcher
    model: ReferenceMatcher
    num_undoable: int = 0

    def legal(self) -> list[int]:
        return legal_ids(self.model, TWO_STOPS)


def matcher_machine(make: MakeBackend) -> type[RuleBasedStateMachine]:
    """The state machine of a backend."""

    class MatcherMachine(RuleBasedStateMachine):
        """Matchers and forks of one grammar, each moved in any order; equal to the reference's at all times."""

        def __init__(self) -> None:
            super().__init__()
            self.story = Story()
            self.is_broken = False
            with self._telling():
                self.backend = make(TWO_STOPS)
            self.reference = ReferenceBackend(TWO_STOPS)
            self.pairs: list[_Pair] = []

        @initialize(data=st.data())
        def compile(self, data: st.DataObject) -> None:
            with self._telling():
                spec = data.draw(grammar_specs(self.backend.facts))
                self.story.tell(f"compile {spec.kind} {spec.source} ({spec.whitespace})")
                try:
                    self.model_grammar = self.reference.compile(for_reference(spec))
                    self.grammar = self.backend.compile(spec)
                except GrammarCompileError:
                    reject()  # nothing satisfies it, or the backend has limits: other checks look at that
            self.new_matcher()

        @precondition(lambda self: len(self.pairs) < _MOST_MATCHERS)
        @rule()
        def new_matcher(self) -> None:
            name = f"matcher {len(self.pairs) + 1}"
            self.story.tell(f"{name} = backend.matcher(compiled)")
            with self._telling():
                matcher = self.backend.matcher(self.grammar)
            self.pairs.append(_Pair(name, matcher, self.reference.matcher(self.model_grammar)))

        @precondition(lambda self: len(self.pairs) < _MOST_MATCHERS)
        @rule(data=st.data())
        def fork(self, data: st.DataObject) -> None:
            pair, name = self._one(data), f"matcher {len(self.pairs) + 1}"
            self.story.tell(f"{name} = a fork of {pair.name}")
            with self._telling():
                matcher = pair.matcher.fork()
            self.pairs.append(_Pair(name, matcher, pair.model.fork()))

        @rule(data=st.data())
        def accept_legal(self, data: st.DataObject) -> None:
            pair = self._one(data)
            for _ in range(data.draw(st.integers(1, 3))):
                if legal := pair.legal():
                    self._accept(pair, data.draw(st.sampled_from(legal)))

        @rule(data=st.data())
        def finish(self, data: st.DataObject) -> None:
            pair = self._one(data)
            if stops := [token for token in pair.legal() if token in TWO_STOPS.stop_ids]:
                self._accept(pair, data.draw(st.sampled_from(stops)))

        @rule(data=st.data())
        def accept_any(self, data: st.DataObject) -> None:
            self._accept(self._one(data), data.draw(any_ids(TWO_STOPS)))

        @rule(data=st.data())
        def accept_prefix(self, data: st.DataObject) -> None:
            pair, tokens = self._one(data), list[int]()
            scout = pair.model.fork()
            for _ in range(data.draw(st.integers(0, 4))):
                if legal := legal_ids(scout, TWO_STOPS):
                    tokens.append(data.draw(st.sampled_from(legal)))
                    scout.accept(tokens[-1])
            tokens += data.draw(st.lists(any_ids(TWO_STOPS), max_size=2))
            call = f"accept_prefix({texts_of(tokens, TWO_STOPS)})"
            self.story.tell(f"{pair.name}: {call}")
            expected = pair.model.accept_prefix(tokens)
            pair.num_undoable = undoable(self.backend, pair.num_undoable + expected)
            with self._telling():
                same(f"{call} of {pair.name}", pair.matcher.accept_prefix(tokens), expected)

        @precondition(lambda self: any(pair.num_undoable for pair in self.pairs))
        @rule(data=st.data())
        def rollback(self, data: st.DataObject) -> None:
            pair = data.draw(st.sampled_from([pair for pair in self.pairs if pair.num_undoable]))
            num_tokens = data.draw(st.integers(0, pair.num_undoable))
            self.story.tell(f"{pair.name}: rollback({num_tokens})")
            pair.model.rollback(num_tokens)
            pair.num_undoable -= num_tokens
            with self._telling():
                pair.matcher.rollback(num_tokens)

        @rule(data=st.data())
        def fill(self, data: st.DataObject) -> None:
            self._expect_equal_rows(self._one(data))

        @invariant()
        def finished(self) -> None:
            with self._telling():
                for pair in self.pairs:
                    same(f"finished of {pair.name}", pair.matcher.finished, pair.model.finished)

        def teardown(self) -> None:
            for pair in self.pairs if not self.is_broken else ():  # else it would hide what was found
                self._expect_equal_rows(pair)

        @contextmanager
        def _telling(self) -> Iterator[None]:
            try:
                with telling(self.story):
                    yield
            except ConformanceError:
                self.is_broken = True
                raise

        def _one(self, data: st.DataObject) -> _Pair:
            return data.draw(st.sampled_from(self.pairs))

        def _accept(self, pair: _Pair, token: int) -> None:
            call = f"accept({text_of(token, TWO_STOPS)})"
            self.story.tell(f"{pair.name}: {call}")
            expected = pair.model.accept(token)
            pair.num_undoable = undoable(self.backend, pair.num_undoable + expected)
            with self._telling():
                same(f"{call} of {pair.name}", pair.matcher.accept(token), expected)

        def _expect_equal_rows(self, pair: _Pair) -> None:
            self.story.tell(f"{pair.name}: fill")
            with self._telling():
                found, expected = legal_ids(pair.matcher, TWO_STOPS), pair.legal()
                expect(
                    found == expected,
                    f"the legal tokens of {pair.name} are {texts_of(found, TWO_STOPS)}; "
                    f"the reference's are {texts_of(expected, TWO_STOPS)}",
                )

    return MatcherMachine


def run_machine(machine: type[RuleBasedStateMachine], max_examples: int) -> None:
    """Play a machine, the same examples each time; raises the ConformanceError of the smallest that fails."""
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=max_examples,
                stateful_step_count=20,
                derandomize=True,
                database=None,
                deadline=None,
                report_multiple_bugs=False,
                print_blob=False,
                suppress_health_check=[
                    HealthCheck.too_slow,
                    HealthCheck.data_too_large,
                    HealthCheck.filter_too_much,
                ],
                phases=[Phase.generate, Phase.shrink],
            ),
        )
    except ConformanceError as error:
        error.__notes__ = []  # hypothesis's own account of the steps: the story says it better
        raise
    except Unsatisfiable as error:
        raise ConformanceError("no grammar compiles, of all that its facts name") from error
    except Flaky as error:
        raise ConformanceError(f"the same calls do not give the same twice: {error}") from error
