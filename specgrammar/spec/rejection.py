"""Rejection sampling of one node's children, candidate by candidate.

A drafter drew children x_1, x_2, ... of a node independently, x_j from a stated q_j. The target's distribution
there is p. Starting with p_1 = p, for j = 1, 2, ...:

    accept x_j with probability min(1, p_j(x_j) / q_j(x_j)) and stop;
    otherwise go on with p_{j+1} = max(p_j - q_j, 0), normalised.

If all are rejected, the token is drawn from what is left of p.

The token that comes out has the law p. By induction from the last candidate: suppose that the procedure from
j + 1 on yields p_{j+1}. Candidate j is x and accepted with probability q_j(x) min(1, p_j(x)/q_j(x)) =
min(p_j(x), q_j(x)); so it is rejected with probability 1 - sum min(p_j, q_j) = sum max(p_j - q_j, 0) =: b. The
outcome is x with probability min(p_j(x), q_j(x)) + b * max(p_j(x) - q_j(x), 0) / b = p_j(x).

The step "with probability b, go on" needs x_{j+1} to be independent of x_1 .. x_j. So nothing may be left out
of the list because of what was drawn: a candidate that the grammar forbids has p(x) = 0, is rejected by the law
and moves the residual like any other; two equal candidates are two candidates. Since p is masked and each
residual is at most a multiple of it, no residual can contain an illegal token.

Leviathan, Kalman, Matias 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318) for one candidate;
Miao et al. 2023 (SpecInfer, arXiv 2305.09781) for several.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.spec.noise import Stream, noise_keys, uniform


@dataclass(frozen=True, eq=False)
class Candidates:
    """The children of some nodes, all drawn from stated distributions, in the order of their indices.

    Attributes:
        exists: bool `[rows, most children]`; False behind a node's last child.
        token: int64 `[rows, most children]`, their tokens.
        q_row: int64 `[rows, most children]`, which row of q each was drawn from.
        may_be_accepted: bool `[rows, most children]`; False where the grammar says that it is dead.
    """

    exists: NDArray[np.bool_]
    token: NDArray[np.int64]
    q_row: NDArray[np.int64]
    may_be_accepted: NDArray[np.bool_]


def choose_candidates(
    probs: torch.Tensor,
    q: torch.Tensor,
    candidates: Candidates,
    seeds: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept at most one candidate per row; what is left of p where none was.

    Args:
        probs: float32 `[rows, columns]`, the target's masked and truncated distributions.
        q: float32 `[q rows, at most columns]`; columns that it lacks count as 0.
        candidates: of each row.
        seeds: int64 `[rows]`.
        positions: int64 `[rows]`, the candidates' absolute positions.

    Returns:
        choice: int64 `[rows]`, the accepted candidate's place among its siblings, -1 where all were rejected.
        residual: float64 `[rows, columns]`, for rows without a choice the distribution to draw from, up to
            rounding. In exact arithmetic a rejection leaves something of p; where rounding leaves nothing (p
            and q differ by less than their own rounding, which happens about as often as they differ: once in
            10**7), the distribution from before that rejection stands. It is masked as well.
    """
    device = probs.device
    residual = probs.double()
    choice = torch.full((len(probs),), -1, dtype=torch.int64, device=device)
    for lane in range(candidates.exists.shape[1]):
        exists = candidates.exists[:, lane]
        token = candidates.token[:, lane]
        inside = (token >= 0) & (token < q.shape[1])
        column = torch.from_numpy(np.where(inside, token, 0)).to(device)[:, None]
        q_rows = q[torch.from_numpy(np.where(exists, candidates.q_row[:, lane], 0)).to(device)].double()
        chance = torch.from_numpy(uniform(noise_keys(seeds, positions, Stream.ACCEPT, lane))).to(device)
        can_accept = torch.from_numpy(exists & inside & candidates.may_be_accepted[:, lane]).to(device)

        p_token, q_token = residual.gather(1, column)[:, 0], q_rows.gather(1, column)[:, 0]
        is_open = choice < 0
        accepted = is_open & can_accept & (q_token > 0) & (chance * q_token < p_token)
        choice = torch.where(accepted, lane, choice)

        rest = residual.clone()
        rest[:, : q.shape[1]] -= q_rows
        rest.clamp_(min=0)
        # cumsum adds a row in its own order; sum may add it in another one when the batch is larger.
        mass = rest.cumsum(dim=-1)[:, -1:]
        rejected = (is_open & ~accepted & torch.from_numpy(exists).to(device))[:, None]
        residual = torch.where(rejected & (mass > 0), rest / mass, residual)
    return choice, residual
