"""REFUEL: a regression on turns that were sampled in the same state, instead of a policy gradient.

Source: "Regressing the Relative Future: Efficient Policy Optimization for Multi-turn RLHF" (REFUEL). For two
completions x and y of one state, each played to its end, the loss is

    ((d_x - d_y) / eta - (R_x - R_y))^2,    d = sum over the turn's tokens of log pi_theta - log pi_old.

The mean is taken over the pairs of each state, and then over the states. The return R is the turn's advantage: any
number that is equal for all turns of a state cancels. The released code writes ``(d_x - d_y - eta (R_x - R_y))^2``,
which is ``eta^2`` times this.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym.trainers.losses.options import RefuelOptions


def refuel_terms(
    change: Tensor, advantage: Tensor, turn: Tensor, state: Tensor, options: RefuelOptions
) -> tuple[Tensor, Tensor]:
    """Return the factors of the tokens' gradients and the tokens' parts of the loss, ``[M]`` each.

    The loss of a state with n turns is the mean over its pairs, ``2 / (n - 1) sum_i (u_i - mean u)^2`` with
    ``u = d / eta - R``. Its derivative by a token's log-probability is ``4 / (n - 1) (u_i - mean u) / eta``.

    Args:
        change: ``[M]`` log pi_theta - log pi_old of the update's tokens, without gradient.
        advantage: ``[M]`` the return of the token's turn, up to a number that its state's turns share.
        turn: ``[M]`` turn of the token, counted over the update.
        state: ``[M]`` state in which several turns were sampled, -1 for other tokens.
        options: the scale eta.

    Example (d is 0.3 and -0.2, the returns differ by 0.8):
        >>> change, returns = torch.tensor([0.1, 0.2, -0.2, 9.0]), torch.tensor([0.8, 0.8, 0.0, 5.0])
        >>> turn, state = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 0, 0, -1])
        >>> factor, value = refuel_terms(change, returns, turn, state, RefuelOptions())
        >>> [round(x, 4) for x in factor.tolist()], round(value.sum().item(), 4)
        ([-0.6, -0.6, 0.6, 0.0], 0.09)
    """
    is_sibling = state >= 0
    factor, value = torch.zeros_like(change), torch.zeros_like(change)
    if not is_sibling.any():
        return factor, value
    turns, of_token = torch.unique(turn[is_sibling], return_inverse=True)
    num_tokens = torch.bincount(of_token, minlength=len(turns)).to(change)
    total = torch.zeros_like(num_tokens).index_add(0, of_token, change[is_sibling])
    returns = torch.zeros_like(num_tokens).index_add(0, of_token, advantage[is_sibling].to(change)) / num_tokens
    states, of_turn = torch.unique(_first(state[is_sibling], of_token, len(turns)), return_inverse=True)
    sizes = torch.bincount(of_turn, minlength=len(states)).to(change)
    residual = total / options.eta - returns
    residual = residual - (torch.zeros_like(sizes).index_add(0, of_turn, residual) / sizes)[of_turn]
    pairs = (sizes - 1).clamp(min=1)[of_turn] * (sizes > 1).sum().clamp(min=1)
    slope, squares = 4 * residual / (options.eta * pairs), 2 * residual.square() / pairs
    factor[is_sibling], value[is_sibling] = slope[of_token], (squares / num_tokens)[of_token]
    return factor, value


def _first(of_tokens: Tensor, unit: Tensor, num_units: int) -> Tensor:
    """Return for each unit the value of its tokens, which all have the same."""
    return torch.zeros(num_units, dtype=of_tokens.dtype, device=of_tokens.device).scatter(0, unit, of_tokens)


def prepare_refuel(
    logprob: Tensor,
    logprob_old: Tensor,
    advantage: Tensor,
    loss_weight: Tensor,
    turn: Tensor,
    siblings: Tensor,
    group: Tensor,
    options: RefuelOptions,
) -> dict[str, Tensor]:
    """Return REFUEL's factors and losses of all tokens, divided by their weights; zeros without sibling turns."""
    # states are counted in each group, and no two groups share one
    state = torch.where(siblings < 0, -1, siblings + (siblings.max() + 1) * (group - group.min()))
    factor, value = refuel_terms(logprob - logprob_old, advantage, turn, state, options)
    return {"factor": factor / loss_weight, "value": value / loss_weight}


def refuel(logprob: Tensor, factor: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss per token from :func:`refuel_terms`, and nowhere a gate, ``[N]`` each.

    The sum over an update's tokens, times their weights, has the value and the gradient of REFUEL's loss.
    """
    return value + factor * (logprob - logprob.detach()), torch.zeros_like(logprob, dtype=torch.bool)
