"""The law of one row: from masked logits and sampling parameters to a distribution, and to one token.

Everything here works row by row. A row's result has the same bits alone and in any batch: only elementwise
operations, maxima and sorts, and kernels that reduce each row on its own (softmax, cumsum) are used, never a
reduction whose order of summation may depend on the number of rows.

The order is that of Hugging Face's `generate`: mask (done by the caller), temperature, top-k, top-p, min-p,
each on what the one before left, renormalised:

    top-k   keeps x where fewer than k tokens are more probable than x
    top-p   keeps x where the tokens that are more probable than x have less than top_p of the mass
    min-p   keeps x where p(x) >= min_p * max p

so ties at the border are kept together and the most probable token always stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.spec.noise import Stream, gumbel, noise_keys
from specgrammar.spec.sampling import SamplingParams
from specgrammar.spec.sampling_table import SamplingTable

_TOP_P_CANDIDATES = 1024
"""How many of the most probable tokens are sorted before a row is sorted whole (0.4 against 2.8 ms of 49k)."""
_CELLS = 2**22
"""How many logits are normalised or ranked at a time, which bounds the memory (42 bytes each with noise)."""
_DEVICE_CELLS = 2**25
"""The same on a device, where many small launches would cost more than the memory (up to 1.4 GB with noise)."""


def truncate_probs(logits: torch.Tensor, params: Sequence[SamplingParams] | SamplingTable) -> torch.Tensor:
    """The distribution that a row's token has.

    `sample_tokens` draws from exactly this, so it is also the q that a drafter has to state.

    Args:
        logits: `[rows, columns]`, any float dtype and device, masked (-inf is illegal).
        params: one per row; greedy rows put all mass on the argmax.

    Returns:
        float32 `[rows, columns]` on the same device. Each row sums to 1, except that a row from which nothing
        may be drawn (all -inf, or holding NaN or +inf) is all zero.
    """
    table = _as_table(params)
    rows = logits.float().contiguous()
    best_logit, best = rows.max(dim=-1)
    probs = torch.zeros_like(rows)
    probs.scatter_(1, best[:, None], 1.0)
    drawn = np.flatnonzero(~table.greedy)
    if drawn.size:
        part = truncate_logits(_rows(rows, drawn), table.take(drawn)).softmax(dim=-1)
        probs.index_copy_(0, _on(drawn, rows), part.float())
    return torch.where(best_logit.isfinite()[:, None], probs, 0.0)


def sample_tokens(
    logits: torch.Tensor,
    params: Sequence[SamplingParams] | SamplingTable,
    positions: NDArray[np.int64],
    *,
    stream: Stream = Stream.TARGET,
    lane: int = 0,
) -> torch.Tensor:
    """One token per row: the argmax (lowest id of a tie) where greedy, otherwise drawn with keyed noise.

    Args:
        logits: `[rows, columns]`, any float dtype and device, masked (-inf is illegal).
        params: one per row.
        positions: int64 `[rows]`, absolute positions of the tokens to be drawn.
        stream: what the draw is for; see `noise.Stream`.
        lane: which of several draws of that stream at one position.

    Returns:
        int64 `[rows]` on the device of the logits; -1 for a row from which nothing may be drawn (all -inf, or
        holding NaN or +inf).
    """
    table = _as_table(params)
    tokens = greedy_tokens(logits)
    drawn = np.flatnonzero(~table.greedy)
    if drawn.size:
        part = table.take(drawn)
        kept = truncate_logits(_rows(logits, drawn).float(), part)
        keys = noise_keys(part.seed, positions[drawn], stream, lane)
        index = _on(drawn, logits)
        offers = tokens.index_select(0, index) >= 0
        tokens.index_copy_(0, index, torch.where(offers, gumbel_argmax(kept, keys), -1))
    return tokens


def top_tokens(
    logits: torch.Tensor,
    params: Sequence[SamplingParams] | SamplingTable,
    positions: NDArray[np.int64],
    num: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that a draw would give one after the other, if each were forbidden in turn.

    For a row that does not truncate, the first of them that is legal is the token of the masked row: a draw is
    an argmax, of logits or of noisy logits whose noise does not depend on the mask (see `sample_tokens`).

    Args:
        logits: `[rows, columns]`, any float dtype and device.
        params: one per row; top-k, top-p and min-p are not looked at.
        positions: int64 `[rows]`, absolute positions of the tokens to be drawn.
        num: how many, at most; at least 1.

    Returns:
        tokens: int64 `[rows, num]` (or as wide as the logits), best first, the lowest id of a tie first.
        num_sure: int64 `[rows]`, how many of them are surely the best ones: those that beat the last, with
            which others may be tied that are not here. 0 for a row from which nothing may be drawn.
    """
    table, num = _as_table(params), min(num, logits.shape[1])
    tokens = torch.empty((len(logits), num), dtype=torch.int64, device=logits.device)
    num_sure = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    step = max(1, (_CELLS if logits.device.type == "cpu" else _DEVICE_CELLS) // logits.shape[1])
    for start in range(0, len(logits), step):
        part = slice(start, start + step)
        rows = _noisy(logits[part], table.take(part), positions[part])
        best, found = rows.topk(num, dim=-1)
        found, order = found.sort(dim=-1)  # of equal ones the lowest id first
        best, order = best.gather(1, order).sort(dim=-1, descending=True, stable=True)
        tokens[part] = found.gather(1, order)
        num_sure[part] = torch.where(best[:, 0].isfinite(), (best > best[:, -1:]).sum(dim=-1), 0)
    return tokens, num_sure


def _noisy(rows: torch.Tensor, table: SamplingTable, positions: NDArray[np.int64]) -> torch.Tensor:
    """What `sample_tokens` takes the argmax of, for rows that do not truncate: float `[rows, columns]`."""
    drawn = np.flatnonzero(~table.greedy)
    if not drawn.size:
        return rows
    part, index = table.take(drawn), _on(drawn, rows)
    keys = _column(noise_keys(part.seed, positions[drawn], Stream.TARGET, 0), rows)
    noise = gumbel(keys, torch.arange(rows.shape[1], device=rows.device).expand(len(keys), -1))
    scaled = _rows(rows, drawn).float().double() / _temperature(part, rows)
    return rows.double().index_copy(0, index, scaled + noise)


def greedy_tokens(logits: torch.Tensor) -> torch.Tensor:
    """The argmax of each row, the lowest id of a tie; -1 for a row from which nothing may be drawn."""
    if logits.device.type != "cpu":
        best_logit, token = logits.max(dim=-1)
        return torch.where(best_logit.isfinite(), token, -1)
    # NumPy's argmax takes a third of the time of torch's, which is not vectorised; it knows no half precision.
    values = (logits.float() if logits.element_size() < 4 else logits).detach().numpy()
    tokens = values.argmax(axis=-1)
    finite = np.isfinite(values[np.arange(len(tokens)), tokens])
    return torch.from_numpy(np.where(finite, tokens, -1))


def token_logprobs(logits: torch.Tensor, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> torch.Tensor:
    """Log-probability of `tokens[i]` under row `rows[i]`, at temperature 1 and untruncated.

    Args:
        logits: `[num_rows, columns]`, any float dtype and device, masked.
        rows: int64 `[n]`, which row each token was drawn from.
        tokens: int64 `[n]`, columns of the logits.

    Returns:
        float32 `[n]` on the device of the logits, natural logarithms.
    """
    result = torch.empty(len(rows), dtype=torch.float32, device=logits.device)
    step = max(1, _CELLS // logits.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        logprobs = _rows(logits, rows[part]).float().log_softmax(dim=-1)
        result[part] = logprobs.gather(1, _column(tokens[part], logits))[:, 0]
    return result


def truncate_logits(rows: torch.Tensor, table: SamplingTable) -> torch.Tensor:
    """Temperature and truncation: what `softmax` turns into the law of a row that is not greedy.

    Args:
        rows: float32 `[rows, columns]`, contiguous, masked; not changed.
        table: their parameters; no row is greedy.

    Returns:
        A new float64 `[rows, columns]`: scaled logits, -inf where a token is cut or illegal. A row from which
        nothing may be drawn holds +inf or NaN, or only -inf.
    """
    # Before the temperature, which keeps the order but may round two logits to one.
    rows = _keep_top_k(rows, table.top_k)
    # A token's value here depends on no other token, so that masking a row changes nothing of those that stay
    # (lazy masking rests on it). In float64 the tiniest temperature of a float32 cannot overflow.
    rows = rows.double() / _temperature(table, rows)
    rows = _keep_top_p(rows, table.top_p)
    if (table.min_p > 0).any():
        # The most probable token survives every cut, so that no normalisation is needed.
        with np.errstate(divide="ignore"):
            floor = np.log(table.min_p)
        rows = rows.masked_fill(rows < rows.amax(dim=-1, keepdim=True) + _column(floor, rows), -torch.inf)
    return rows


def gumbel_argmax(log_weights: torch.Tensor, keys: NDArray[np.int64]) -> torch.Tensor:
    """Draw one token per row with probability proportional to `exp(log_weights)`.

    Only tokens above -inf get noise, which is what makes truncated and masked rows cheap.

    Args:
        log_weights: float `[rows, columns]`, in any scale, below +inf.
        keys: int64 `[rows]` from `noise_keys`; one key is for one draw.

    Returns:
        int64 `[rows]` on the device of the weights; -1 for a row that has only -inf and NaN.
    """
    row, token = (log_weights > -torch.inf).nonzero(as_tuple=True)
    cell = row * log_weights.shape[-1] + token
    noise = gumbel(_on(keys, row).index_select(0, row), token)
    scores = torch.full(log_weights.shape, -torch.inf, dtype=torch.float64, device=row.device)
    scores.view(-1).scatter_(0, cell, log_weights.reshape(-1).index_select(0, cell) + noise)
    return greedy_tokens(scores)


def _keep_top_k(rows: torch.Tensor, top_k: NDArray[np.int64]) -> torch.Tensor:
    cut = np.flatnonzero((top_k > 0) & (top_k < rows.shape[-1]))
    if not cut.size:
        return rows
    part, k = _rows(rows, cut), top_k[cut]
    border = part.topk(int(k.max()), dim=-1).values.gather(1, _column(k - 1, rows))
    return rows.index_copy(0, _on(cut, rows), part.masked_fill(part < border, -torch.inf))


def _keep_top_p(rows: torch.Tensor, top_p: NDArray[np.float64]) -> torch.Tensor:
    cut = np.flatnonzero(top_p < 1)
    if not cut.size:
        return rows
    part, target = _rows(rows, cut), _column(top_p[cut], rows)
    border, found = _top_p_border(part, target, min(_TOP_P_CANDIDATES, rows.shape[-1]))
    flat = (~found).nonzero(as_tuple=True)[0]
    if len(flat):
        border[flat] = _top_p_border(part[flat], target[flat], rows.shape[-1])[0]
    return rows.index_copy(0, _on(cut, rows), part.masked_fill(part < border, -torch.inf))


def _top_p_border(
    rows: torch.Tensor, top_p: torch.Tensor, num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest kept logit `[rows, 1]`, and whether the candidates' mass sufficed to find it `[rows]`."""
    largest, token = rows.topk(num_candidates, dim=-1)
    mass = rows.softmax(dim=-1).gather(1, token).cumsum(dim=-1)
    num_below = (mass < top_p).sum(dim=-1, keepdim=True)
    border = largest.gather(1, num_below.clamp(max=num_candidates - 1))
    return border, num_below[:, 0] < num_candidates


def _temperature(table: SamplingTable, like: torch.Tensor) -> torch.Tensor:
    float32 = np.finfo(np.float32)
    return _column(table.temperature.clip(float32.tiny, float32.max), like)


def _on(values: NDArray[np.generic], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values).to(like.device)


def _column(values: NDArray[np.generic], like: torch.Tensor) -> torch.Tensor:
    return _on(values, like)[:, None]


def _rows(matrix: torch.Tensor, index: NDArray[np.int64]) -> torch.Tensor:
    return matrix.index_select(0, _on(index, matrix))


def _as_table(params: Sequence[SamplingParams] | SamplingTable) -> SamplingTable:
    return params if isinstance(params, SamplingTable) else SamplingTable.of(params)
