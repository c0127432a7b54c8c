"""Tree verification equals an ordinary forward over each node's own path, whatever happened before."""

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from specgrammar.errors import InvalidTokenError, ModelError, StaleStepError
from specgrammar.protocols.staging import Device
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import InlineDevice
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.trees.tree import DeviceTree, DraftTree, HostTree
from specgrammar_transformers import TransformersTarget
from tests.transformers_adapter.tiny import (
    MAX_LENGTH,
    VOCAB,
    accepted,
    batch_of,
    generate,
    greedy_tokens,
    path_to,
    plain_logits,
    random_parents,
    tiny_model,
    tree_of,
)

ARCHITECTURES = [
    ("llama", "sdpa"),
    ("llama", "eager"),
    ("qwen2", "sdpa"),
    ("gpt2", "eager"),
    ("gpt_neox", "sdpa"),
]


def prompt(rng: np.random.Generator, length: int) -> list[int]:
    return [int(token) for token in rng.integers(VOCAB, size=length)]


@pytest.mark.parametrize("kind,attention", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(3))
def test_every_node_sees_its_prefix_and_its_path(kind: str, attention: str, seed: int) -> None:
    check_decoding(tiny_model(kind, attention, seed=seed), seed, InlineDevice())


@pytest.mark.parametrize("seed", range(3))
def test_forwards_on_a_stream_give_the_same(seed: int) -> None:
    check_decoding(tiny_model(seed=seed), seed, CpuStream())
    rng = np.random.default_rng(seed)
    lagging = DelayedDevice(schedule=lambda num_pending: int(rng.integers(num_pending + 1)))
    check_decoding(tiny_model(seed=seed), seed, lagging)


def check_decoding(model: PreTrainedModel, seed: int, device: Device) -> None:
    """Random trees, ragged batches in any order, commits, requests that come and go."""
    rng = np.random.default_rng(seed)
    target = TransformersTarget(model, 4, device)
    sequences: dict[str, list[int]] = {}
    for step in range(14):
        if len(sequences) < 2 or (len(sequences) < 4 and rng.random() < 0.4):
            name = f"request {step}"
            sequences[name] = prompt(rng, int(rng.integers(1, 30)))
            target.add(name, sequences[name])
        elif rng.random() < 0.25:
            name = str(rng.choice(sorted(sequences)))
            target.remove(name)
            del sequences[name]
        names = [str(name) for name in rng.permutation(sorted(sequences))]
        names = names[: int(rng.integers(1, len(names) + 1))]
        parents = [random_parents(rng, int(rng.integers(1, 9))) for _ in names]
        tree = tree_of(step, [sequences[name][-1] for name in names], parents, rng)
        batch = batch_of(step, sequences, names)
        logits = target.verify(batch, tree).wait()
        assert tree.host is not None
        assert logits.shape == (tree.num_nodes, VOCAB)
        paths, bonus = [], []
        for row, name in enumerate(names):
            start = int(tree.cu_nodes[row])
            tokens = tree.host.draft_tokens[start : int(tree.cu_nodes[row + 1])].tolist()
            for node in range(len(tokens)):
                below = [tokens[i] for i in path_to(parents[row], node)]
                expected = plain_logits(model, sequences[name][:-1] + below)
                torch.testing.assert_close(logits[start + node], expected, atol=2e-5, rtol=1e-5)
            paths.append(path_to(parents[row], int(rng.integers(len(tokens)))))
            bonus.append(int(rng.integers(VOCAB)))
            sequences[name] = sequences[name] + [tokens[i] for i in paths[row][1:]] + [bonus[row]]
        target.commit(batch, accepted(paths, bonus))


@pytest.mark.parametrize("kind,attention", ARCHITECTURES)
def test_greedy_decoding_equals_generate(kind: str, attention: str) -> None:
    model = tiny_model(kind, attention)
    target = TransformersTarget(model, max_batch_size=1)
    rng = np.random.default_rng(0)
    tokens = prompt(rng, 7)
    expected = generate(model, tokens, 20, eos_token_id=VOCAB)
    target.add("a", tokens)
    for step in range(20):
        batch = batch_of(step, {"a": tokens}, ["a"])
        logits = target.verify(batch, tree_of(step, [tokens[-1]], [[-1]], rng)).wait()
        tokens = [*tokens, int(logits[0].argmax())]
        target.commit(batch, accepted([[0]], [tokens[-1]]))
    assert tokens == expected


def test_long_prompts_are_run_in_chunks_and_the_cache_grows() -> None:
    rng = np.random.default_rng(1)
    model = tiny_model()
    target = TransformersTarget(model, max_batch_size=2)
    sequences = {"short": prompt(rng, 3), "long": prompt(rng, 600)}
    for name, tokens in sequences.items():
        target.add(name, tokens)
    tree = tree_of(0, [sequences[name][-1] for name in sequences], [[-1, 0, 0], [-1]], rng)
    logits = target.verify(batch_of(0, sequences, list(sequences)), tree).wait()
    for node, name in ((0, "short"), (3, "long")):
        torch.testing.assert_close(logits[node], plain_logits(model, sequences[name]), atol=2e-5, rtol=1e-5)


def test_a_device_tree_gives_the_logits_of_the_host_tree() -> None:
    rng = np.random.default_rng(2)
    target = TransformersTarget(tiny_model(), max_batch_size=3)
    sequences = {name: prompt(rng, 5 + i) for i, name in enumerate("abc")}
    for name, tokens in sequences.items():
        target.add(name, tokens)
    batch = batch_of(0, sequences, list("abc"))
    parents = [random_parents(rng, size) for size in (9, 1, 6)]
    tree = tree_of(0, [sequences[name][-1] for name in "abc"], parents, rng)
    host = tree.host
    assert host is not None
    arrays = (host.draft_tokens, host.retrieve_next_token, host.retrieve_next_sibling)
    device = DeviceTree(*(torch.from_numpy(array) for array in arrays))
    expected = target.verify(batch, tree).wait()
    torch.testing.assert_close(
        target.verify(batch, DraftTree(0, tree.cu_nodes, device=device)).wait(), expected
    )
    mixed = DeviceTree(
        torch.from_numpy(host.draft_tokens), host.retrieve_next_token, host.retrieve_next_sibling
    )
    torch.testing.assert_close(target.verify(batch, DraftTree(0, tree.cu_nodes, device=mixed)).wait(), expected)


def test_device_tokens_without_links_are_chains() -> None:
    rng = np.random.default_rng(3)
    target = TransformersTarget(tiny_model(), max_batch_size=1)
    sequence = {"a": prompt(rng, 4)}
    target.add("a", sequence["a"])
    chain = tree_of(0, [sequence["a"][-1]], [[-1, 0, 1, 2]], rng)
    assert chain.host is not None
    device = DeviceTree(torch.from_numpy(chain.host.draft_tokens))
    batch = batch_of(0, sequence, ["a"])
    expected = target.verify(batch, chain).wait()
    torch.testing.assert_close(
        target.verify(batch, DraftTree(0, chain.cu_nodes, device=device)).wait(), expected
    )


def test_one_requests_nan_stays_with_it_and_leaves_with_it() -> None:
    rng = np.random.default_rng(5)
    model = tiny_model()
    with torch.no_grad():
        model.get_parameter("model.embed_tokens.weight")[63] = torch.nan
    target = TransformersTarget(model, max_batch_size=2)
    sequences = {"good": [3, 4, 5], "bad": [63] * 20}
    for name, tokens in sequences.items():
        target.add(name, tokens)
    tree = tree_of(0, [5, 63], [[-1], [-1]], rng)
    logits = target.verify(batch_of(0, sequences, ["good", "bad"]), tree).wait()
    assert logits[1].isnan().any()
    expected = plain_logits(model, sequences["good"])
    torch.testing.assert_close(logits[0], expected)
    target.remove("bad")
    sequences["next"] = [7]
    target.add("next", sequences["next"])
    tree = tree_of(1, [5, 7], [[-1], [-1]], rng)
    logits = target.verify(batch_of(1, sequences, ["good", "next"]), tree).wait()
    torch.testing.assert_close(logits, torch.stack([expected, plain_logits(model, [7])]))


def test_a_request_may_leave_between_verify_and_commit() -> None:
    rng = np.random.default_rng(7)
    model = tiny_model()
    target = TransformersTarget(model, max_batch_size=3)
    sequences = {name: prompt(rng, 3 + 4 * i) for i, name in enumerate("abc")}
    for name, tokens in sequences.items():
        target.add(name, tokens)
    batch = batch_of(0, sequences, list("abc"))
    tree = tree_of(0, [sequences[name][-1] for name in "abc"], [[-1, 0, 1]] * 3, rng)
    target.verify(batch, tree)
    target.remove("a")
    target.commit(batch, accepted([[0, 1], [0, 1, 2], [0, 1]], [8, 8, 8]))
    assert tree.host is not None
    drafts = tree.host.draft_tokens.tolist()
    sequences = {"b": [*sequences["b"], drafts[4], drafts[5], 8], "c": [*sequences["c"], drafts[7], 8]}
    logits = target.verify(batch_of(1, sequences, ["b", "c"]), tree_of(1, [8, 8], [[-1], [-1]], rng)).wait()
    expected = torch.stack([plain_logits(model, sequences[name]) for name in "bc"])
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-5)


def test_what_does_not_fit_is_refused_with_lengths_and_limit() -> None:
    rng = np.random.default_rng(8)
    target = TransformersTarget(tiny_model(), max_batch_size=1)
    with pytest.raises(ModelError, match=f"'a' needs {MAX_LENGTH + 1} tokens.*can place {MAX_LENGTH}"):
        target.add("a", [0] * (MAX_LENGTH + 1))
    with pytest.raises(ModelError, match="empty prompt"):
        target.add("a", [])
    with pytest.raises(InvalidTokenError, match=f"token 64 is outside the model's vocabulary of {VOCAB}"):
        target.add("a", [1, 64, 2])
    full = [0] * MAX_LENGTH
    target.add("a", full)
    with pytest.raises(ModelError, match="added before"):
        target.add("a", [1])
    with pytest.raises(ModelError, match="holds 1 requests and all are taken"):
        target.add("b", [1])
    with pytest.raises(ModelError, match=f"needs {MAX_LENGTH + 1} tokens"):
        target.verify(batch_of(0, {"a": full}, ["a"]), tree_of(0, [0], [[-1, 0]], rng))
    assert target.verify(batch_of(0, {"a": full}, ["a"]), tree_of(0, [0], [[-1]], rng)).wait().isfinite().all()


def test_invariant_7_stale_steps_are_refused() -> None:
    rng = np.random.default_rng(9)
    target = TransformersTarget(tiny_model(), max_batch_size=1)
    target.add("a", [1, 2, 3])
    batch = batch_of(4, {"a": [1, 2, 3]}, ["a"])
    with pytest.raises(StaleStepError, match="made for step 3, the batch is step 4"):
        target.verify(batch, tree_of(3, [3], [[-1]], rng))
    with pytest.raises(StaleStepError, match="step 4 is to be committed"):
        target.commit(batch, accepted([[0]], [5]))
    target.verify(batch, tree_of(4, [3], [[-1]], rng))
    target.commit(batch, accepted([[0]], [5]))
    with pytest.raises(StaleStepError, match="none"):
        target.commit(batch, accepted([[0]], [5]))
    with pytest.raises(ModelError, match="has 3 tokens, but 3 are cached"):
        target.verify(batch_of(5, {"a": [1, 2, 3]}, ["a"]), tree_of(5, [3], [[-1]], rng)).wait()
    with pytest.raises(ModelError, match="'x' is unknown"):
        target.verify(batch_of(5, {"x": [1]}, ["x"]), tree_of(5, [1], [[-1]], rng))
    with pytest.raises(ModelError, match="the tree has 2 requests, the batch has 1"):
        target.verify(batch_of(5, {"a": [1, 2, 3, 5]}, ["a"]), tree_of(5, [5, 5], [[-1], [-1]], rng))
    target.remove("never added")


def test_speculation_with_an_oracle_gives_the_greedy_tokens() -> None:
    """Right drafts are accepted whole: several tokens a step, the same sequence."""
    rng = np.random.default_rng(10)
    model = tiny_model()
    target = TransformersTarget(model, max_batch_size=1)
    tokens = prompt(rng, 6)
    expected = tokens + greedy_tokens(model, tokens, 20)
    target.add("a", tokens)
    for step in range(4):
        draft = expected[len(tokens) - 1 : len(tokens) + 4]
        host = HostTree.from_parents(np.array([0, 5]), np.array(draft), np.arange(-1, 4))
        batch = batch_of(step, {"a": tokens}, ["a"])
        best = target.verify(batch, DraftTree(step, host.cu_nodes, host)).wait().argmax(dim=-1).tolist()
        assert best[:4] == draft[1:]
        target.commit(batch, accepted([range(5)], [best[4]]))
        tokens = [*tokens, *best]
    assert tokens == expected
