"""A `HeadState` says the same however its requests are batched, cut into pieces, and drafted for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specgrammar.errors import ConfigError, ModelError
from specgrammar.spec.eagle.config import LAST, EagleConfig
from specgrammar.spec.eagle.head import EagleHead
from specgrammar.spec.eagle.state import HeadState

VOCAB, HIDDEN, TARGET_HIDDEN = 30, 16, 12


def small_head(num_steps: int = 1) -> EagleHead:
    generator = torch.Generator().manual_seed(num_steps)
    config = EagleConfig(
        "eagle3",
        HIDDEN,
        4,
        2,
        6,
        24,
        VOCAB,
        TARGET_HIDDEN,
        (2, 5, LAST),
        num_steps=num_steps,
        feature_norms=True,
    )
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    head = EagleHead(config, embedding, embedding)
    for parameter in head.parameters():
        noise = 0.15 * torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(noise + (1.0 if parameter.dim() == 1 else 0.0))
    return head.eval()


def text(length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens 1 to r and the features of tokens 0 to r-1."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (length,), generator=generator)
    return tokens, torch.randn(length, 3 * TARGET_HIDDEN, generator=generator)


def joined(*texts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Several texts, as `extend` takes them."""
    return torch.cat([tokens for tokens, _ in texts]), torch.cat([features for _, features in texts])


def chain(state: HeadState, row: int, hidden: Tensor, tokens: list[int]) -> list[Tensor]:
    """The outputs behind each token of a chain."""
    outputs = [hidden]
    for i, token in enumerate(tokens):
        path = torch.ones(1, 1, i + 1, dtype=torch.bool)
        outputs.append(state.expand([row], torch.tensor([[token]]), outputs[-1][:, None], path)[:, 0])
    return outputs[1:]


def assert_close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@given(st.data())
def test_pieces_batches_and_drafts_in_between_change_nothing(data: st.DataObject) -> None:
    num_steps = data.draw(st.integers(1, 3))
    head = small_head(num_steps)
    lengths = data.draw(st.lists(st.integers(num_steps, 14), min_size=1, max_size=4))
    texts = [text(length, seed) for seed, length in enumerate(lengths)]
    rows = data.draw(st.permutations(range(len(lengths) + 1)))[: len(lengths)]
    state = HeadState(head, len(lengths) + 1, 4, num_positions=1)  # so that it has to grow
    done = [0] * len(lengths)
    last: dict[int, Tensor] = {}
    while True:
        open_ = [i for i, length in enumerate(lengths) if done[i] < length]
        if not open_:
            break
        chosen = data.draw(st.lists(st.sampled_from(open_), min_size=1, unique=True))
        counts = [data.draw(st.integers(1, lengths[i] - done[i])) for i in chosen]
        tokens = torch.cat([texts[i][0][done[i] : done[i] + n] for i, n in zip(chosen, counts, strict=True)])
        features = torch.cat([texts[i][1][done[i] : done[i] + n] for i, n in zip(chosen, counts, strict=True)])
        outputs = state.extend([rows[i] for i in chosen], tokens, features, counts)
        for i, n, output in zip(chosen, counts, outputs, strict=True):
            done[i] += n
            last[i] = output
            assert state.length(rows[i]) == done[i]
        if data.draw(st.booleans()):
            chain(state, rows[chosen[0]], outputs[:1], [3, 1])
    for i, (tokens, features) in enumerate(texts):
        alone = HeadState(head, 1, 3)
        assert_close(alone.extend([0], tokens, features, [len(tokens)])[0], last[i])
        # A row is drafted for by what was committed alone, whatever lay there before.
        again = state.extend([rows[i]], tokens[-1:], features[-1:], [1])
        same = alone.extend([0], tokens[-1:], features[-1:], [1])
        for a, b in zip(chain(state, rows[i], again, [5, 9, 2]), chain(alone, 0, same, [5, 9, 2]), strict=True):
            assert_close(a, b)


@pytest.mark.parametrize("num_steps", [1, 2])
@given(data=st.data())
def test_a_node_is_what_its_path_alone_would_be(num_steps: int, data: st.DataObject) -> None:
    head = small_head(num_steps)
    texts = [text(length, length) for length in (5, 9)]
    b, width, depth = len(texts), 3, 3
    state = HeadState(head, b, width * depth)
    output = state.extend([0, 1], *joined(*texts), counts=[5, 9])
    paths: list[list[list[int]]] = [[[]], [[]]]
    outputs = output[:, None]
    nodes = torch.zeros(b, 1, 0, dtype=torch.bool)
    for _ in range(depth):
        above = torch.tensor(
            [[data.draw(st.integers(0, outputs.shape[1] - 1)) for _ in range(width)] for _ in range(b)]
        )
        tokens = torch.tensor([[data.draw(st.integers(0, VOCAB - 1)) for _ in range(width)] for _ in range(b)])
        hidden = outputs.gather(1, above[:, :, None].expand(-1, -1, HIDDEN))
        inherited = nodes.gather(1, above[:, :, None].expand(-1, -1, nodes.shape[2]))
        nodes = torch.cat((inherited, torch.eye(width, dtype=torch.bool).expand(b, -1, -1)), 2)
        outputs = state.expand([0, 1], tokens, hidden, nodes)
        paths = [
            [[*paths[i][int(parent)], int(token)] for parent, token in zip(above[i], tokens[i], strict=True)]
            for i in range(b)
        ]
        for i, (committed, features) in enumerate(texts):
            for node, path in enumerate(paths[i]):
                alone = HeadState(head, 1, depth)
                first = alone.extend([0], committed, features, [len(committed)])
                assert_close(outputs[i, node], chain(alone, 0, first, path)[-1][0])


def test_a_cleared_row_is_empty() -> None:
    head = small_head(2)
    state = HeadState(head, 2, 2)
    state.extend([0, 1], *joined(text(7, 1), text(4, 2)), counts=[7, 4])
    state.clear(0)
    tokens, features = text(5, 3)
    found = state.extend([0], tokens, features, [5])
    assert_close(found, HeadState(head, 1, 2).extend([0], tokens, features, [5]))
    assert (state.length(0), state.length(1)) == (5, 4)


def test_sizes_that_do_not_fit_are_named() -> None:
    state = HeadState(small_head(), 2, 2)
    tokens, features = text(4, 1)
    for counts in ([3], [4, 0], [5]):
        with pytest.raises(ConfigError, match="one of each per position"):
            state.extend([0, 1][: len(counts)], tokens, features, counts)
    output = state.extend([0], tokens, features, [4])
    hidden = output[:, None].expand(-1, 2, -1)
    with pytest.raises(ConfigError, match=r"ancestors have shape \[1, 2, 3\], expected \[1, 2, 2\]"):
        state.expand([0], torch.zeros(1, 2, dtype=torch.int64), hidden, torch.ones(1, 2, 3, dtype=torch.bool))
    state.expand([0], torch.zeros(1, 2, dtype=torch.int64), hidden, torch.eye(2, dtype=torch.bool)[None])
    with pytest.raises(ConfigError, match="4 nodes for one request, reserved are 2"):
        state.expand([0], torch.zeros(1, 2, dtype=torch.int64), hidden, torch.ones(1, 2, 4, dtype=torch.bool))


def test_tensors_of_another_target_are_named() -> None:
    config = small_head().config
    right, wrong = torch.zeros(VOCAB, HIDDEN), torch.zeros(VOCAB, HIDDEN + 1)
    with pytest.raises(ModelError, match=r"embedding .* expected shape \[30, 16\], found \[30, 17\]"):
        EagleHead(config, wrong, right)
    with pytest.raises(ModelError, match=r"output .* found \[30, 17\]"):
        EagleHead(config, right, wrong)
    for ids in ([2, 1], [1, 1], [-1, 3], [3, 30], []):
        with pytest.raises(ModelError, match="draft_ids"):
            EagleHead(config, right, right, torch.tensor(ids, dtype=torch.int64))


def test_a_bfloat16_head_drafts() -> None:
    head = small_head().bfloat16()
    state = HeadState(head, 1, 2)
    tokens, features = text(6, 4)
    output = state.extend([0], tokens, features, [6])
    assert output.dtype == torch.bfloat16
    logits = head.logits(chain(state, 0, output, [4])[0], head.vocabulary(torch.tensor([7])))
    assert logits.shape == (1, VOCAB)
    assert bool(logits.isfinite().all())
