"""Checks of `GrammarMatcher`: of one sequence's state, whatever is done to it and to others."""

from __future__ import annotations

from hypothesis import strategies as st

from specgrammar.errors import MatcherError
from specgrammar.testing.checks.base import (
    Checks,
    CheckSkipped,
    Draw,
    Story,
    expect,
    expect_raise,
    explore,
    same,
)
from specgrammar.testing.checks.walking import (
    MakeBackend,
    accept,
    compiled,
    expect_replay,
    legal_ids,
    refuse,
    some_grammar,
    spell,
    undoable,
    walk,
)
from specgrammar.testing.strategies import any_ids
from specgrammar.testing.toys import STOP, TWO_STOPS, VOCABULARY, anything, spelling, texts_of

MATCHER_CHECKS = Checks("matcher")


@MATCHER_CHECKS.add(invariant=1)
def check_rollback_equals_replay(make: MakeBackend) -> None:
    """The state after `rollback` equals that of a fresh matcher which accepted the remaining tokens."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story)
        matcher, accepted, room = backend.matcher(grammar), list[int](), 0
        for _ in range(draw(st.integers(1, 3))):
            more = walk(matcher, draw, story)
            accepted, room = accepted + more, undoable(backend, room + len(more))
            num_tokens = draw(st.integers(0, room))
            story.tell(f"rollback({num_tokens})")
            matcher.rollback(num_tokens)
            room -= num_tokens
            del accepted[len(accepted) - num_tokens :]
            expect_replay(matcher, backend, grammar, accepted, f"after rollback({num_tokens})")

    explore(play, max_examples=60)


@MATCHER_CHECKS.add(invariant=1)
def check_a_branch_sees_nothing_of_its_sibling(make: MakeBackend) -> None:
    """Behind a rollback another branch has its own rows: nothing is remembered from the one that was left."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story)
        matcher = backend.matcher(grammar)
        stem = walk(matcher, draw, story, most=3)
        for _ in range(2):
            branch = walk(matcher, draw, story, most=undoable(backend, 3))
            expect_replay(matcher, backend, grammar, [*stem, *branch], "in a branch")
            story.tell(f"rollback({len(branch)})")
            matcher.rollback(len(branch))

    explore(play, max_examples=60)


@MATCHER_CHECKS.add(invariant=1)
def check_impossible_rollbacks_are_refused(make: MakeBackend) -> None:
    """`rollback` of less than none or of more than was accepted raises MatcherError and changes nothing."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story)
        matcher = backend.matcher(grammar)
        accepted = walk(matcher, draw, story, most=3)
        for wrong in (-1, len(accepted) + 1, 10**6):
            with expect_raise(MatcherError, f"rollback({wrong}) behind {texts_of(accepted)}"):
                matcher.rollback(wrong)
            expect_replay(matcher, backend, grammar, accepted, f"after rollback({wrong}) was refused")

    explore(play, max_examples=30)


@MATCHER_CHECKS.add(invariant=1)
def check_the_stop_token_is_one_step(make: MakeBackend) -> None:
    """A stop token is legal where the grammar may end, makes `finished` true, and is one step like others."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story)
        matcher, accepted = backend.matcher(grammar), list[int]()
        while STOP not in (legal := legal_ids(matcher)):
            if not legal or len(accepted) > 20:
                return  # a dead end, or a grammar that does not come to an end by itself
            refuse(matcher, STOP, story, "where its bit is not set")
            token = draw(st.sampled_from(legal))
            accept(matcher, token, story)
            accepted.append(token)
        expect(not matcher.finished, "finished is true where no stop token was accepted")
        accept(matcher, STOP, story)
        expect(matcher.finished is True, "finished is false behind a stop token")
        for token in range(VOCABULARY.vocab_size):
            refuse(matcher, token, story, "behind the stop token")
        same("legal tokens behind the stop token", legal_ids(matcher), [])
        expect(matcher.finished, "finished became false because a token was refused behind the stop token")
        num_tokens = draw(st.integers(0, undoable(backend, 1 + len(accepted))))
        story.tell(f"rollback({num_tokens})")
        matcher.rollback(num_tokens)
        what = f"after rollback({num_tokens}) behind the stop token"
        same(f"finished {what}", matcher.finished, num_tokens == 0)
        left = [*accepted, STOP][: 1 + len(accepted) - num_tokens]
        expect_replay(matcher, backend, grammar, left, what)

    explore(play, max_examples=50)


@MATCHER_CHECKS.add(invariant=4)
def check_every_stop_id_ends(make: MakeBackend) -> None:
    """All stop ids are legal where the grammar may end and only there; none is text, whatever its bytes."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story, TWO_STOPS)
        matcher = backend.matcher(grammar)
        walk(matcher, draw, story, vocabulary=TWO_STOPS)
        legal = legal_ids(matcher, TWO_STOPS)
        stops = [token for token in TWO_STOPS.stop_ids if token in legal]
        if not stops:
            return
        same("legal stop ids", texts_of(stops, TWO_STOPS), texts_of(TWO_STOPS.stop_ids, TWO_STOPS))
        accept(matcher, draw(st.sampled_from(stops)), story, TWO_STOPS)
        expect(matcher.finished, "finished is false behind a stop token")

    explore(play, max_examples=60)


@MATCHER_CHECKS.add(invariant=4)
def check_special_ids_are_never_text(make: MakeBackend) -> None:
    """A special id and a stop id are never legal as text, even if their bytes would match."""

    def play(draw: Draw, story: Story) -> None:
        backend = make(TWO_STOPS)
        grammar = compiled(backend, spelling(backend.facts, "aca", "caca"), story)
        matcher, tokens = backend.matcher(grammar), list[int]()
        for token in spell(
            backend.matcher(grammar), draw(st.sampled_from(["aca", "caca"])), Story(), TWO_STOPS
        ):
            legal = legal_ids(matcher, TWO_STOPS)
            wrong = [i for i in legal if i in TWO_STOPS.special_ids]
            expect(not wrong, f"{texts_of(wrong, TWO_STOPS)} is legal in the middle of a text")
            for special in sorted(TWO_STOPS.special_ids):
                refuse(matcher, special, story, "in the middle of a text", TWO_STOPS)
            accept(matcher, token, story, TWO_STOPS)
            tokens.append(token)
            expect_replay(matcher, backend, grammar, tokens, "after special ids were refused", TWO_STOPS)

    explore(play, max_examples=2)


@MATCHER_CHECKS.add(invariant=1)
def check_accept_prefix_is_accept_one_by_one(make: MakeBackend) -> None:
    """`accept_prefix` accepts tokens, each one step, up to the first illegal one or the end; it counts them."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story)
        matcher, scout = backend.matcher(grammar), backend.matcher(grammar)
        accepted = walk(matcher, draw, story, most=2)
        for token in accepted:
            scout.accept(token)
        tokens = walk(scout, draw, Story(), most=4)
        expected = len(tokens)
        for token in draw(st.lists(any_ids(VOCABULARY), max_size=3)):
            tokens.append(token)
            if expected == len(tokens) - 1 and scout.accept(token):
                expected += 1
        story.tell(f"accept_prefix({texts_of(tokens)})")
        what = f"accept_prefix({texts_of(tokens)}) behind {texts_of(accepted)}"
        same(what, matcher.accept_prefix(tokens), expected)
        expect_replay(matcher, backend, grammar, accepted + tokens[:expected], "after accept_prefix")
        num_tokens = undoable(backend, expected)
        matcher.rollback(num_tokens)
        behind = accepted + tokens[: expected - num_tokens]
        expect_replay(matcher, backend, grammar, behind, f"after accept_prefix and rollback({num_tokens})")

    explore(play, max_examples=60)


@MATCHER_CHECKS.add(invariant=1)
def check_forks_are_independent(make: MakeBackend) -> None:
    """A fork is in the same state; what is done to one of the two changes nothing in the other."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story)
        matcher = backend.matcher(grammar)
        accepted = walk(matcher, draw, story, most=3)
        story.tell("fork")
        fork = matcher.fork()
        expect_replay(fork, backend, grammar, accepted, "in a fork")
        moved, other, name = draw(
            st.sampled_from([(matcher, fork, "the fork"), (fork, matcher, "the original")])
        )
        story.tell(f"move {'the original' if moved is matcher else 'the fork'}")
        tokens = walk(moved, draw, story, most=undoable(backend, 3))
        expect_replay(moved, backend, grammar, accepted + tokens, "in the one that was moved")
        expect_replay(other, backend, grammar, accepted, f"in {name} after the other one was moved")
        story.tell(f"rollback({len(tokens)})")
        moved.rollback(len(tokens))
        expect_replay(other, backend, grammar, accepted, f"in {name} after the other one was rolled back")
        more = walk(other, draw, story, most=undoable(backend, 3))
        expect_replay(other, backend, grammar, accepted + more, f"in {name}, moved later")
        other.rollback(len(more))
        expect_replay(other, backend, grammar, accepted, f"in {name}, moved and rolled back")

    explore(play, max_examples=60)


@MATCHER_CHECKS.add(invariant=1)
def check_a_fork_may_forget_but_not_make_up_its_history(make: MakeBackend) -> None:
    """A fork's `rollback` to before the fork works or raises MatcherError; it never gives another state."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story)
        matcher = backend.matcher(grammar)
        before = walk(matcher, draw, story, most=3)
        story.tell("fork")
        fork = matcher.fork()
        accepted = before + walk(fork, draw, story, most=2)
        num_tokens = draw(st.integers(0, undoable(backend, len(accepted))))
        story.tell(f"rollback({num_tokens}) of the fork")
        try:
            fork.rollback(num_tokens)
        except MatcherError:
            own = len(accepted) - len(before)
            expect(num_tokens > own, f"rollback({num_tokens}) of a fork is refused; it accepted {own} itself")
        else:
            del accepted[len(accepted) - num_tokens :]
        expect_replay(fork, backend, grammar, accepted, f"after rollback({num_tokens}) of a fork")
        expect_replay(matcher, backend, grammar, before, "in the original after the fork was rolled back")

    explore(play, max_examples=60)


@MATCHER_CHECKS.add(invariant=1)
def check_matchers_share_no_state(make: MakeBackend) -> None:
    """Matchers of one compiled grammar are independent: each one is at its own place."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story)
        first, second = backend.matcher(grammar), backend.matcher(grammar)
        before = texts_of(legal_ids(second))
        accepted = walk(first, draw, story, most=3)
        what = f"after another one accepted {texts_of(accepted)}"
        same(f"the first row of a matcher {what}", texts_of(legal_ids(second)), before)
        same(f"the first row of a new matcher {what}", texts_of(legal_ids(backend.matcher(grammar))), before)
        story.tell("with the other matcher:")
        others = walk(second, draw, story, most=3)
        expect_replay(first, backend, grammar, accepted, "in the first matcher")
        expect_replay(second, backend, grammar, others, "in the second matcher")

    explore(play, max_examples=50)


@MATCHER_CHECKS.add(invariant=1)
def check_long_histories_can_be_undone(make: MakeBackend) -> None:
    """`rollback` can undo as many tokens as the facts say, at once and one by one."""

    def play(draw: Draw, story: Story) -> None:
        backend = make(VOCABULARY)
        grammar = compiled(backend, anything(backend.facts), story)
        limit, depth = backend.facts.max_rollback, undoable(backend, 300)
        if not depth:
            raise CheckSkipped("facts.max_rollback is 0")
        matcher, scrap = backend.matcher(grammar), Story()
        text = ("abc12" * (depth // 5 + 2))[: depth + 3]
        tokens = spell(matcher, text, scrap)
        story.tell(f"accept {len(tokens)} tokens")
        step = draw(st.sampled_from([depth, 1]))
        story.tell(f"rollback({step}), {depth // step} times")
        for _ in range(depth // step):
            matcher.rollback(step)
        what = f"after a rollback of {depth} of {len(tokens)} tokens (max_rollback is {limit})"
        expect_replay(matcher, backend, grammar, tokens[:3], what)
        accepted = matcher.accept_prefix(tokens[3:])
        same(f"accept_prefix of the same tokens {what}", accepted, depth)

    explore(play, max_examples=2)
