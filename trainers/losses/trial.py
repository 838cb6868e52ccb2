"""A trial of a user's parts of the loss on made-up tokens, before a run warms up and plays."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from agentgym.errors import ConfigError, error_text
from agentgym.trainers.losses.component import LossComponent
from agentgym.trainers.losses.config import LossConfig

_NUM_TOKENS = 6


def try_out(config: LossConfig) -> None:
    """Call the policy loss, corrections and regularisers that a user made, and check what they return.

    Raises:
        ConfigError: one raised an error, changed its arguments, or returned something else than it must.
    """
    for component, options in config.parts():
        if component.is_own:
            _TRIALS[component.family](component, _called(component, options, config))


def _try_loss(component: LossComponent, returned: object) -> None:
    loss, _ = checked_pair(component.name, returned, _NUM_TOKENS)
    _check_gradient(component, loss)


def _try_regulariser(component: LossComponent, returned: object) -> None:
    _check_gradient(component, checked_tokens(component, returned, _NUM_TOKENS))


def _try_correction(component: LossComponent, returned: object) -> None:
    weight = checked_tokens(component, returned, _NUM_TOKENS)
    if not bool((weight.isfinite() & (weight >= 0)).all()):
        raise ConfigError(
            f"correction {component.name}: it returned {weight.detach().tolist()}, expected finite weights from 0 on"
        )


_TRIALS: Final = {"loss": _try_loss, "regulariser": _try_regulariser, "correction": _try_correction}


def _called(component: LossComponent, options: Any, config: LossConfig) -> object:
    """Return what a component makes of made-up tokens."""
    made = _made_up()
    if not config.needs_reference:
        made["logprob_ref"] = None
    before = {name: value.detach().clone() for name, value in made.items() if isinstance(value, Tensor)}
    try:
        returned: object = component.call(**component.arguments(made, options))
    except Exception as error:  # whatever a user's code raises
        raise ConfigError(f"{component.family} {component.name}: {error_text(error)}") from error
    for name, value in before.items():
        if not torch.equal(value, made[name].detach()):
            raise ConfigError(f"{component.family} {component.name}: it changes {name} in place: change a copy of it")
    return returned


def _made_up() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    values = {
        name: torch.rand(_NUM_TOKENS, generator=generator)
        for name in ("logprob", "logprob_old", "logprob_rollout", "entropy", "advantage", "logprob_ref", "log_rho_N")
    }
    logprob = values["logprob"].neg_().requires_grad_()
    values["entropy"].requires_grad_()
    rows = torch.arange(_NUM_TOKENS) // 3
    return {
        **values,
        "ratio": (logprob + values["logprob_old"]).exp(),
        **{"row": rows, "turn": rows, "unit": rows, "turn_index": rows, "demonstrated": rows > 1},
        **{"low": 0.8, "high": 1.2, "dual": None, "ratio_bounds": (0.8, 1.2)},
        "regression": (values["advantage"], values["advantage"]),
        **{"logprob_teacher": values["logprob_ref"], "historical": values["logprob_ref"], "phase": 1.0},
        **{"is_in_m2po": rows >= 0, "mean_weight": 1.0},
    }


def _check_gradient(component: LossComponent, term: Tensor) -> None:
    name = f"{component.family} {component.name}"
    if not term.requires_grad:
        raise ConfigError(f"{name}: its result has no gradient; logprob, ratio or entropy was detached")
    if not bool(term.isfinite().all()):
        raise ConfigError(f"{name}: it returned {term.detach().tolist()} for finite log-probabilities")


def checked_tokens(component: LossComponent, returned: object, num_tokens: int) -> Tensor:
    """Return a number per token ``[N]``, as a correction or a regulariser must return them.

    Raises:
        ConfigError: it returned something else.
    """
    if isinstance(returned, Tensor) and returned.shape == (num_tokens,):
        return returned
    raise ConfigError(
        f"{component.family} {component.name}: expected a number for each token, a tensor of shape [{num_tokens}] for "
        f"{num_tokens} tokens; it returned {_described(returned)}"
    )


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
