"""The training example: what it computes is what drafting does, and what it makes is what it says."""

from __future__ import annotations

from itertools import islice
from random import Random

import torch

from examples.train_eagle.batches import Batch, Example, batches, collate
from examples.train_eagle.drafting import CHAIN, Known, Shape, count_steps
from examples.train_eagle.loss import chain_losses
from examples.train_eagle.prompts import HELD_OUT_DOMAINS, Task, tasks
from specgrammar.spec.eagle.config import LAST, EagleConfig
from specgrammar.spec.eagle.head import EagleHead
from specgrammar.spec.eagle.state import HeadState

VOCAB, HIDDEN, TOP = 64, 32, 4


def small_head(seed: int = 0) -> EagleHead:
    torch.manual_seed(seed)
    config = EagleConfig("eagle3", HIDDEN, 4, 2, 8, 48, VOCAB, HIDDEN, (1, LAST), norm_eps=1e-5)
    embedding = torch.randn(VOCAB, HIDDEN)
    head = EagleHead(config, embedding, embedding)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.15)
    return head


def random_example(num_prompt: int, num_answer: int, seed: int) -> Example:
    generator = torch.Generator().manual_seed(seed)
    size = num_prompt + num_answer
    tokens = torch.randint(VOCAB, (size,), generator=generator)
    top = torch.stack([torch.randperm(VOCAB, generator=generator)[:TOP] for _ in range(num_answer)])
    return Example(
        Task("chat", "", None, "", 0.0),
        num_prompt,
        tokens,
        torch.randn(size - 1, 2 * HIDDEN, generator=generator),
        top,
        torch.rand(num_answer, TOP, generator=generator).softmax(-1),
    )


def drafted_logits(head: EagleHead, example: Example, root: int, depth: int) -> torch.Tensor:
    """The logits behind a chain that spells the text itself, `depth` tokens below a root."""
    state = HeadState(head, 1, depth)
    hidden = state.extend([0], example.tokens[1 : root + 1], example.features[:root], [root])
    for i in range(depth):
        token = example.tokens[root + 1 + i].view(1, 1)
        hidden = state.expand([0], token, hidden[:, None], torch.ones(1, 1, i + 1, dtype=torch.bool))[:, 0]
    return head.logits(hidden[0], head.vocabulary())


def test_training_runs_what_drafting_runs() -> None:
    """Every depth's loss is the one of the chains that a `HeadState` drafts from every root."""
    head, depth = small_head(), 3
    examples = [random_example(9, 6, 1), random_example(4, 8, 2), random_example(14, 5, 3)]
    found = chain_losses(head, collate(examples), head.vocabulary(), depth)
    for step in range(depth):
        losses, num_right = [], 0
        for e in examples:
            for i in range(step, e.answer_length):
                logits = drafted_logits(head, e, e.prompt_length - 1 + i - step, step).log_softmax(-1)
                losses.append(-(e.top_probs[i] * logits[e.top_ids[i]]).sum())
                num_right += int(logits.argmax() == e.top_ids[i, 0])
        torch.testing.assert_close(found[step].loss, torch.stack(losses).mean(), atol=1e-4, rtol=1e-4)
        assert (found[step].num_right, found[step].num_positions) == (num_right, len(losses))


def test_gradients_are_those_of_the_cross_entropy() -> None:
    head = small_head()
    batch = collate([random_example(5, 6, 4)])
    torch.autograd.backward(chain_losses(head, batch, head.vocabulary(), 1)[0].loss)
    fused = {name: p.grad.clone() for name, p in head.named_parameters() if p.grad is not None}
    head.zero_grad()
    torch.autograd.backward(_plain_loss(head, batch))
    for name, parameter in head.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(fused[name], parameter.grad, atol=1e-5, rtol=1e-4)


def _plain_loss(head: EagleHead, batch: Batch) -> torch.Tensor:
    """The first depth's loss by autograd alone."""
    from unittest.mock import patch

    import examples.train_eagle.loss as module

    class Plain:
        @staticmethod
        def apply(
            output: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, probs: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            logprobs = (output @ rows.T).log_softmax(-1)
            return -(probs * logprobs.gather(1, places)).sum(-1).mean(), torch.zeros(len(output))

    with patch.object(module, "_SoftCrossEntropy", Plain):
        return chain_losses(head, batch, head.vocabulary(), 1)[0].loss


def test_steps_are_counted_as_a_target_would_accept() -> None:
    """A chain's steps, against drafting one by one."""
    head = small_head()
    e = random_example(6, 12, 5)
    known = Known(e.tokens, e.prompt_length, e.features, torch.tensor([0]))
    root, num_steps = e.prompt_length - 1, 0
    while root < len(e.tokens) - 1:
        draft: list[int] = []
        text = e.tokens[: root + 1]
        for i in range(CHAIN.steps):
            spelled = Example(
                e.task,
                e.prompt_length,
                torch.cat((text, torch.tensor(draft, dtype=torch.int64))),
                e.features,
                e.top_ids,
                e.top_probs,
            )
            draft.append(int(drafted_logits(head, spelled, root, i).argmax()))
        answer = e.tokens[root + 1 :].tolist()
        num_accepted = 0
        while num_accepted < min(CHAIN.steps, len(answer)) and draft[num_accepted] == answer[num_accepted]:
            num_accepted += 1
        root, num_steps = min(root + num_accepted + 1, len(e.tokens) - 1), num_steps + 1
    assert count_steps(head, [known], CHAIN)[0].num_steps == num_steps
    # Side by side with others nothing changes, and a tree that holds the chain is no worse.
    other = random_example(9, 5, 6)
    both = [known, Known(other.tokens, other.prompt_length, other.features, torch.tensor([1]))]
    assert count_steps(head, both, CHAIN)[0].num_steps == num_steps
    assert count_steps(head, [known], Shape(4, 4, 53))[0].num_steps <= num_steps


def test_batches_hold_every_answer_once() -> None:
    examples = [random_example(4 + i % 7, 3 + i % 11, i) for i in range(60)]
    found = list(batches(examples, 40, Random(3)))
    lengths = [int(length) for batch in found for length in batch.lengths]
    assert sorted(lengths) == sorted(e.answer_length for e in examples)
    assert all(int(batch.lengths.sum()) < 40 + 14 for batch in found)


def test_validation_shares_nothing_with_training() -> None:
    train, validation = list(islice(tasks("train", 0), 2000)), list(islice(tasks("validation", 0), 500))
    assert {t.family for t in validation}.isdisjoint(t.family for t in train)
    assert set(HELD_OUT_DOMAINS) <= {t.family for t in validation}
    assert {t.prompt for t in validation}.isdisjoint(t.prompt for t in train)
    assert len({t.prompt for t in train}) == len(train)
    assert train == list(islice(tasks("train", 0), 2000))
    assert train != list(islice(tasks("train", 1), 2000))
