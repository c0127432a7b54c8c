"""Does a loaded model take the paths that it is given? One small tree tells, before any request does.

An architecture can accept a mask and positions and still go by the order of the cache's slots (linear biases
such as ALiBi do), or ignore part of a mask. It would answer fluently and wrongly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from specgrammar.errors import ModelError
from specgrammar.trees.convert import qlen_mask
from specgrammar.trees.tree import HostTree
from specgrammar_transformers.tree_layout import TreeLayout

if TYPE_CHECKING:
    from specgrammar_transformers.cached_model import CachedModel

_PARENTS = [-1, 0, 0, 1]
_PATHS = [(0,), (0, 1), (0, 2), (0, 1, 3)]
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
_HALF_TOLERANCE = 0.1
"""In standard deviations of the logits; 16-bit models differ by some hundredths with the batch's shape."""


@torch.no_grad()
def check_paths(cached: CachedModel) -> None:
    """Compare each node of a small tree with an ordinary forward over its path, behind prefixes of two lengths.

    Raises:
        ModelError: they differ.
    """
    spread = cached.vocab_size // 7 + 1
    tokens = [i * spread % cached.vocab_size for i in range(1, 8)]
    prefixes = [tokens[:2], tokens[2:3]][: cached.max_batch_size]
    names = [f"self-check {i}" for i in range(len(prefixes))]
    nodes = np.array(tokens[3:], dtype=np.int64)
    tree = HostTree.from_parents(np.array([0, 4]), nodes, np.array(_PARENTS))
    ids = torch.from_numpy(nodes).to(cached.device).expand(len(names), 4)
    ancestors = torch.from_numpy(qlen_mask(tree)).to(cached.device).expand(len(names), 4, 4)
    layout = TreeLayout(ids, ancestors, np.full(len(names), 4))
    try:
        for name, prefix in zip(names, prefixes, strict=True):
            cached.start(name)
            cached.extend(name, prefix)
        found = cached.forward(names, lambda: layout, "self-check").wait().view(len(names), 4, -1)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ModelError(
            f"{type(cached.model).__name__} cannot be given a mask per node: {error}; use another model, or "
            'load it with attn_implementation="sdpa"'
        ) from error
    for name in names:
        cached.remove(name)
    tolerance = _TOLERANCE.get(cached.model.dtype, _HALF_TOLERANCE)
    for row, prefix in enumerate(prefixes):
        for node, path in enumerate(_PATHS):
            sequence = torch.tensor([[*prefix, *(tokens[3 + i] for i in path)]], device=cached.device)
            expected = cached.model(input_ids=sequence, use_cache=False).logits[0, -1].float()
            wrong = (found[row, node].float() - expected).abs().max()
            if not wrong <= tolerance * expected.std():
                raise ModelError(
                    f"{type(cached.model).__name__} does not follow the paths of a tree: logits differ by "
                    f"{wrong / expected.std():.2g} standard deviations from those of the path alone. It may "
                    "use position biases (ALiBi) or an attention implementation without 4-D masks; load it "
                    'with attn_implementation="sdpa" or use another model'
                )
