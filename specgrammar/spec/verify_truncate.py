"""Temperature and truncation on a device: `sampler.truncate_logits` with the parameters in tensors.

What a row needs is not known to the host, so nothing is skipped for single rows: all go through what the batch
may need. Values and ties are those of the sampler.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from specgrammar.spec.verify_inputs import DeviceSampling

_CELLS = 2**25
"""How many logits are truncated at a time, which bounds the memory (60 bytes each where rows are sorted)."""


def scaled_logits(logits: torch.Tensor, request: torch.Tensor, sampling: DeviceSampling) -> torch.Tensor:
    """Scaled logits, -inf where a token is cut or illegal.

    Args:
        logits: float `[num_nodes, columns]`, masked; not changed.
        request: int64 `[num_nodes]`, each node's request.
        sampling: their parameters.

    Returns:
        A new float64 `[num_nodes, columns]`. A greedy row keeps its values. A row from which nothing may be
        drawn holds +inf or NaN, or only -inf.
    """
    scaled = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
    for part in _parts(logits):
        scaled[part] = _truncated(logits[part].float(), request[part], sampling)
    return scaled


def target_probs(logits: torch.Tensor, request: torch.Tensor, sampling: DeviceSampling) -> torch.Tensor:
    """What `sampler.truncate_probs` gives for rows that are not greedy: float32 `[num_nodes, columns]`."""
    probs = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    for part in _parts(logits):
        scaled = _truncated(logits[part].float(), request[part], sampling)
        offers = scaled.amax(dim=-1, keepdim=True).isfinite()
        probs[part] = torch.where(offers, scaled.softmax(dim=-1).float(), 0.0)
    return probs


def _parts(logits: torch.Tensor) -> Iterator[slice]:
    step = max(1, _CELLS // logits.shape[1])
    return (slice(start, start + step) for start in range(0, len(logits), step))


def _truncated(rows: torch.Tensor, request: torch.Tensor, sampling: DeviceSampling) -> torch.Tensor:
    if sampling.max_top_k:
        rows = _keep_top_k(rows, sampling.top_k[request], sampling.max_top_k)
    temperature = sampling.temperature[request]
    scaled = rows.double() / torch.where(temperature > 0, temperature, 1.0)[:, None]
    if sampling.uses_top_p:
        scaled = _keep_top_p(scaled, sampling.top_p[request])
    if sampling.uses_min_p:
        floor = scaled.amax(dim=-1, keepdim=True) + sampling.log_min_p[request][:, None]
        scaled = scaled.masked_fill(scaled < floor, -torch.inf)
    return scaled


def _keep_top_k(rows: torch.Tensor, top_k: torch.Tensor, max_top_k: int) -> torch.Tensor:
    num = min(max_top_k, rows.shape[1])
    border = rows.topk(num, dim=-1).values.gather(1, (top_k - 1).clamp(0, num - 1)[:, None])
    cut = ((top_k > 0) & (top_k < rows.shape[1]))[:, None]
    return rows.masked_fill(cut & (rows < border), -torch.inf)


def _keep_top_p(rows: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    largest, token = rows.sort(dim=-1, descending=True)
    mass = rows.softmax(dim=-1).gather(1, token).cumsum(dim=-1)
    num_below = (mass < top_p[:, None]).sum(dim=-1, keepdim=True)
    border = largest.gather(1, num_below.clamp(max=rows.shape[1] - 1))
    return rows.masked_fill((top_p < 1)[:, None] & (rows < border), -torch.inf)
