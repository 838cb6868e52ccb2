"""A trial of a user's loss on made-up tokens, before a run warms up and plays."""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym.errors import ConfigError
from agentgym.trainers.losses.config import LossConfig

_NUM_TOKENS = 6


def try_out(config: LossConfig) -> None:
    """Call a loss that a user made, and check what it returns; do nothing for the others.

    Raises:
        ConfigError: it raised an error, or returned something else than finite numbers with a gradient.
    """
    component = config.component
    if component.status != "user":
        return
    generator = torch.Generator().manual_seed(0)
    values = {
        name: torch.rand(_NUM_TOKENS, generator=generator)
        for name in ("logprob", "logprob_old", "logprob_rollout", "entropy", "advantage")
    }
    logprob = values["logprob"].neg_().requires_grad_()
    rows = torch.arange(_NUM_TOKENS) // 3
    made = {
        **values,
        "ratio": (logprob + values["logprob_old"]).exp(),
        **{"row": rows, "turn": rows, "demonstrated": rows > 1},
        **{"low": 0.8, "high": 1.2, "dual": None, "ratio_bounds": None, "regression": None},
    }
    try:
        returned = component.call(**component.arguments(made, config.loss_options))
    except Exception as error:  # whatever a user's code raises
        raise ConfigError(f"loss {component.name}: {type(error).__name__}: {error}") from error
    loss, _ = checked_pair(component.name, returned, _NUM_TOKENS)
    if not loss.requires_grad:
        raise ConfigError(f"loss {component.name}: its result has no gradient; logprob or ratio was detached")
    if not bool(loss.isfinite().all()):
        raise ConfigError(f"loss {component.name}: it returned {loss.detach().tolist()} for finite log-probabilities")


def checked_pair(name: str, returned: object, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Return a loss per token ``[N]`` and where its gate acted ``[N]``, as a loss must return them.

    Raises:
        ConfigError: it returned something else.
    """
    parts = returned if isinstance(returned, tuple) else (returned,)
    if len(parts) == 2 and all(isinstance(one, Tensor) and one.shape == (num_tokens,) for one in parts):
        return parts[0], parts[1]
    found = ", ".join(map(_described, parts))
    raise ConfigError(
        f"loss {name}: expected the loss of each token and where its gate acted, two tensors of shape [{num_tokens}] "
        f"for {num_tokens} tokens; it returned {found or 'nothing'}"
    )


def _described(value: object) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
