"""Checks of `TargetModel`, for the author of an engine adapter.

They work with any vocabulary, and with few small examples, so that a real model can be checked: `examples` says
how many, `tolerance` how alike logits have to be. An adapter that takes a device is best checked on a
`DelayedDevice`, too, where what is read too early shows.
"""

from __future__ import annotations

import torch

from specgrammar.errors import ModelError
from specgrammar.testing.checks.base import Checks, CheckSkipped, expect, expect_raise, same, telling
from specgrammar.testing.checks.target_play import (
    TOLERANCE,
    MakeAdapter,
    Nodes,
    PathsError,
    Play,
    close,
    fail,
    goes_on,
    on_host,
    seeded,
    tree_of,
)
from specgrammar.testing.checks.target_unresolved import SIDES, play_unresolved
from specgrammar.testing.delayed_device import DelayedDevice

TARGET_CHECKS = Checks("target")

SHAPES = ((-1,), (-1, 0), (-1, 0, 0), (-1, 0, 1, 0), (-1, 0, 0, 1, 2, 1), (-1, 0, 1, 2, 0, 4))
"""Parents of small trees: a root, chains, siblings, and branches whose nodes lie between each other's."""

_MOST_TOKENS, _MOST_REQUESTS = 100_000, 64


@TARGET_CHECKS.add(invariant=12)
def check_a_row_of_logits_for_each_node(make: MakeAdapter) -> None:
    """The logits are floats, with a row for each node of the flat tree and a column for each id at least."""
    with Play(make) as play, telling(play.story):
        rng, vocab_size = seeded(0), play.adapter.vocabulary.vocab_size
        trees = {}
        for name, parents in zip("abc"[: play.most_requests], SHAPES[1:], strict=False):
            play.come(name, tokens := play.some_tokens(rng, 3))
            trees[name] = play.some_nodes(rng, tokens[-1], parents)
        logits = play.verify(trees)
        same("the number of dimensions of the logits", logits.dim(), 2)
        expect(
            logits.shape[1] >= vocab_size,
            f"the logits have {logits.shape[1]} columns; expected one for each of {vocab_size} ids at least",
        )
        expect(logits.is_floating_point(), f"the logits are {logits.dtype}; expected floats")
        play.keep_roots(trees)


@TARGET_CHECKS.add(invariant=5)
def check_a_tree_equals_its_paths(make: MakeAdapter, examples: int = 3, tolerance: float = TOLERANCE) -> None:
    """Each node sees its request's tokens and its own ancestors, in their places, as if it came alone."""
    for example in range(examples):
        for parents in SHAPES:
            with Play(make) as play, telling(play.story):
                rng = seeded(example)
                play.come("a", tokens := play.some_tokens(rng, 1 + 3 * example))
                trees = {"a": play.some_nodes(rng, tokens[-1], parents)}
                play.verify(trees)
                play.keep_roots(trees)
                play.compare(tolerance)


@TARGET_CHECKS.add(invariant=5)
def check_siblings_do_not_see_each_other(make: MakeAdapter, tolerance: float = TOLERANCE) -> None:
    """What a node shows does not depend on the other branches of its tree."""
    rng = seeded(0)
    found = []
    with Play(make) as play, telling(play.story):
        prompt, (first, second, third) = play.some_tokens(rng, 3), play.some_tokens(rng, 3)
        for tokens, parents in (((first, second, third), (0, 0, 1)), ((second,), (0,))):
            play.come("a", prompt)
            trees = {"a": Nodes((prompt[-1], *tokens), (-1, *parents))}
            rows = on_host(play.verify(trees), play.adapter.vocabulary.vocab_size)
            found.append(rows[1 + tokens.index(second)])
            play.keep_roots(trees)
            play.leave("a")
        what = f"with a sibling {play.told([first])}, the logits behind {play.told([*prompt, second])}"
        close(found[0], found[1], tolerance, what, "the same node without it")


@TARGET_CHECKS.add(invariant=5)
def check_padding_changes_nothing(make: MakeAdapter, tolerance: float = TOLERANCE) -> None:
    """Padding nodes (token -1), wherever they lie, do not change what the other nodes show."""
    for parents in ((-1, -1), (-1, 0, -1), (-1, -1, 0), (-1, 0, -1, 1, -1, 0)):
        with Play(make) as play, telling(play.story):
            rng = seeded(1)
            play.come("a", tokens := play.some_tokens(rng, 4))
            nodes = play.some_nodes(rng, tokens[-1], parents)
            padded = (token if parent >= 0 or i == 0 else -1 for i, (token, parent) in enumerate(
                zip(nodes.tokens, parents, strict=True)))  # fmt: skip
            trees = {"a": Nodes(tuple(padded), parents)}
            play.verify(trees, "in a tree with padding")
            play.commit(trees, [len(parents) - 1 if parents[-1] >= 0 else 0], [play.ids[0]])
            play.verify(trees := {"a": Nodes((play.ids[0],), (-1,))}, "a step behind a tree with padding")
            play.keep_roots(trees)
            play.compare(tolerance)


@TARGET_CHECKS.add(invariant=3)
def check_the_batch_does_not_matter(make: MakeAdapter, tolerance: float = TOLERANCE) -> None:
    """What a request shows depends neither on the others of its batch nor on their order."""
    rng = seeded(2)
    with Play(make) as play, telling(play.story):
        if play.most_requests < 2:
            raise CheckSkipped("the cache holds one request")
        names = "abc"[: play.most_requests]
        for number, name in enumerate(names):
            play.come(name, play.some_tokens(rng, 2 + 3 * number))
        for order in (names, names[::-1], names[1:], names[:1], names):
            trees = {
                name: play.some_nodes(rng, play.histories[name][-1], SHAPES[3 - "abc".index(name)])
                for name in order
            }
            play.verify(trees, f"in a batch of {[*order]}")
            play.commit(
                trees, [len(nodes.tokens) - 1 for nodes in trees.values()], play.some_tokens(rng, len(trees))
            )
        play.compare(tolerance)


@TARGET_CHECKS.add(invariant=6)
def check_commit_keeps_the_accepted_path(make: MakeAdapter, tolerance: float = TOLERANCE) -> None:
    """`commit` keeps the cache of `nodes_to_keep()`, and of no other node, for every path and bonus or none."""
    for end, has_bonus in ((end, has_bonus) for end in range(len(SHAPES[-1])) for has_bonus in (True, False)):
        with Play(make) as play, telling(play.story):
            rng = seeded(3)
            play.come("a", tokens := play.some_tokens(rng, 3))
            trees = {"a": play.some_nodes(rng, tokens[-1], SHAPES[-1])}
            bonus = play.some_tokens(rng, 1)[0] if has_bonus else -1
            play.verify(trees)
            play.commit(trees, [end], [bonus])
            trees = {"a": play.some_nodes(rng, play.histories["a"][-1], (-1, 0))}
            play.verify(trees, f"a step behind nodes {Nodes((), SHAPES[-1]).path(end)}")
            play.keep_roots(trees)
            play.compare(tolerance)


@TARGET_CHECKS.add(invariant=6)
def check_step_after_step(make: MakeAdapter, examples: int = 3, tolerance: float = TOLERANCE) -> None:
    """Whatever trees were verified and whoever came and left before, a step shows what it would alone."""
    for example in range(examples):
        with Play(make) as play, telling(play.story):
            rng = seeded(10 + example)
            for step in range(5):
                if play.histories and rng.random() < 0.3:
                    play.leave(str(rng.choice(sorted(play.histories))))
                if len(play.histories) < play.most_requests:
                    play.come(f"request {step}", play.some_tokens(rng, int(rng.integers(1, 6))))
                names = [str(name) for name in rng.permutation(sorted(play.histories))]
                trees = {
                    name: play.some_nodes(rng, play.histories[name][-1], SHAPES[int(rng.integers(len(SHAPES)))])
                    for name in names[: int(rng.integers(1, len(names) + 1))]
                }
                play.verify(trees, f"in step {step}")
                ends = [int(rng.integers(len(nodes.tokens))) for nodes in trees.values()]
                play.commit(trees, ends, play.some_tokens(rng, len(trees)))
            play.compare(tolerance)


@TARGET_CHECKS.add(invariant=9)
def check_a_failed_step_keeps_nothing(make: MakeAdapter, tolerance: float = TOLERANCE) -> None:
    """Where the paths raise, nothing of that step is kept, and the next step is as if it had not been."""
    with Play(make) as play, telling(play.story):
        rng = seeded(4)
        play.come("a", tokens := play.some_tokens(rng, 3))
        trees = {"a": play.some_nodes(rng, tokens[-1], (-1, 0, 1))}
        play.verify(trees)
        play.story.tell("commit paths that raise")
        try:
            play.target.commit(play.batch, play.adapter.device.launch(fail, "accept"))
        except PathsError:
            play.story.tell("which commit raises, too")
        trees = {"a": play.some_nodes(rng, tokens[-1], (-1, 0))}
        play.verify(trees, "behind a step that failed")
        play.keep_roots(trees)
        play.compare(tolerance)


@TARGET_CHECKS.add(invariant=9)
def check_remove_forgets(make: MakeAdapter, tolerance: float = TOLERANCE) -> None:
    """`remove` frees a request's cache, so that its id may come again; ids that are unknown are ignored."""
    with Play(make) as play, telling(play.story):
        rng = seeded(5)
        play.leave("never came")
        for number in range(3 + min(play.target.max_batch_size or 0, _MOST_REQUESTS)):
            play.come("a", tokens := play.some_tokens(rng, (4, 2, 1)[number % 3]))
            if number < 3:
                play.verify(
                    trees := {"a": play.some_nodes(rng, tokens[-1], (-1, 0))},
                    f"which came {number} times before",
                )
                play.commit(trees, [1], [play.ids[0]])
            play.leave("a")
            play.leave("a")
        play.compare(tolerance)


@TARGET_CHECKS.add(invariant=10)
def check_what_is_too_long_is_refused(make: MakeAdapter, tolerance: float = TOLERANCE) -> None:
    """`add` raises ModelError for more tokens than `max_length`, and nothing of that request stays."""
    with Play(make) as play, telling(play.story):
        limit = play.target.max_length
        if limit is None or limit > _MOST_TOKENS:
            raise CheckSkipped(f"max_length is {limit}")
        play.story.tell(f"add 'long' with {limit + 1} tokens")
        with expect_raise(ModelError, f"add of {limit + 1} tokens where max_length is {limit}"):
            play.target.add("long", [play.ids[0]] * (limit + 1))
        goes_on(play, "long", tolerance)


@TARGET_CHECKS.add(invariant=10)
def check_a_full_cache_is_refused(make: MakeAdapter, tolerance: float = TOLERANCE) -> None:
    """`add` raises ModelError where `max_batch_size` requests are there; those, and who comes later, go on."""
    with Play(make) as play, telling(play.story):
        limit = play.target.max_batch_size
        if limit is None or limit > _MOST_REQUESTS:
            raise CheckSkipped(f"max_batch_size is {limit}")
        for number in range(limit):
            play.come(f"request {number}", play.some_tokens(seeded(number), 2))
        play.story.tell("add 'one more'")
        with expect_raise(ModelError, f"add of one more than the {limit} requests of max_batch_size"):
            play.target.add("one more", play.some_tokens(seeded(6), 2))
        play.leave("request 0")
        goes_on(play, "one more", tolerance)


@TARGET_CHECKS.add(invariant=8)
def check_logits_may_be_overwritten(make: MakeAdapter, tolerance: float = TOLERANCE) -> None:
    """The caller may overwrite the logits (masks do): no later step is harmed."""
    with Play(make) as play, telling(play.story):
        rng = seeded(7)
        play.come("a", tokens := play.some_tokens(rng, 3))
        same_again = play.some_nodes(rng, tokens[-1], (-1, 0, 0))
        for step, bonus in enumerate((-1, -1, play.ids[0], play.ids[0])):  # nothing is kept of the first two
            trees = {"a": same_again if step < 3 else Nodes((play.ids[0],), (-1,))}
            logits = play.verify(trees, f"in step {step}, where the logits of earlier steps were overwritten")
            play.story.tell("overwrite the logits with -inf")
            logits.fill_(-torch.inf)
            play.commit(trees, [0], [bonus])
        play.compare(tolerance)


@TARGET_CHECKS.add(invariant=8)
def check_verify_returns_at_once(make: MakeAdapter) -> None:
    """`verify` launches the forward and returns; nothing that is on the device's stream is waited for."""
    with Play(make) as play, telling(play.story):
        device = play.adapter.device
        if not isinstance(device, DelayedDevice):
            raise CheckSkipped("that shows on a DelayedDevice only")
        play.come("a", tokens := play.some_tokens(seeded(8), 3))
        device.run_all()
        num_done, _ = device.num_done, [device.launch(int) for _ in range(3)]
        if device.num_done != num_done:
            raise CheckSkipped("its schedule runs work by itself")
        batch, trees = play.batch_of(["a"]), {"a": Nodes((tokens[-1],), (-1,))}
        pending = play.target.verify(batch, tree_of(batch.step, [*trees.values()]))
        same("pieces of earlier work that `verify` waited for", device.num_done - num_done, 0)
        pending.wait()
        play.keep_roots(trees)


@TARGET_CHECKS.add(invariant=10)
def check_resampling_is_honest(make: MakeAdapter) -> None:
    """With `supports_resample` the logits can be read again before `commit`, and are the same."""
    with Play(make) as play, telling(play.story):
        if getattr(play.target, "supports_resample", False) is not True:
            raise CheckSkipped("supports_resample is not declared")
        play.come("a", tokens := play.some_tokens(seeded(9), 3))
        trees = {"a": play.some_nodes(seeded(9), tokens[-1], (-1, 0, 0))}
        batch = play.batch_of(["a"])
        pending = play.target.verify(batch, tree_of(batch.step, [*trees.values()]))
        logits = pending.wait()
        first = logits.detach().clone()
        again = pending.wait()
        expect(torch.equal(again, first), "wait() gave other logits when it was asked a second time")
        expect(torch.equal(logits, first), "the logits changed when they were asked for a second time")
        play.keep_roots(trees)


@TARGET_CHECKS.add(invariant=10)
def check_unresolved_steps_are_honest(make: MakeAdapter, tolerance: float = TOLERANCE) -> None:
    """With `supports_unresolved` a step sees what the step before commits, though no host knows that yet."""
    for side in SIDES:
        for end, has_bonus in ((2, True), (0, True), (3, True), (1, False)):
            with Play(make) as play, telling(play.story):
                if getattr(play.target, "supports_unresolved", False) is not True:
                    raise CheckSkipped("supports_unresolved is not declared")
                play_unresolved(play, side, end, has_bonus)
                play.compare(tolerance)
