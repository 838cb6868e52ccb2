"""A trial of a user's parts of the loss on made-up tokens, before a run warms up and plays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from agentgym.errors import ConfigError, blamed, error_text
from agentgym.plugins import imported, parameters_of
from agentgym.trainers.data.columns import COLUMNS
from agentgym.trainers.data.row import Row
from agentgym.trainers.losses.batch_columns import called_column
from agentgym.trainers.losses.component import LossComponent
from agentgym.trainers.losses.config import LossConfig

_NUM_TOKENS, _VOCABULARY = 6, 8


def try_out(config: LossConfig) -> None:
    """Call the components of the loss that a user made, and check what they return.

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


def _try_mask(component: LossComponent, returned: object) -> None:
    checked_marks(component, returned, _NUM_TOKENS)


def _try_auxiliary(component: LossComponent, returned: object) -> None:
    checked_rows(component, returned)


_TRIALS: Final = {
    "loss": _try_loss,
    "regulariser": _try_regulariser,
    "correction": _try_correction,
    "token mask": _try_mask,
    "auxiliary loss": _try_auxiliary,
}


def _called(component: LossComponent, options: Any, config: LossConfig) -> object:
    """Return what a component makes of made-up tokens, after its ``prepare``."""
    made = _MadeUp(config)
    name = f"{component.family} {component.name}"
    try:
        measured = {}
        if component.measure:
            values = {one: made[one] for one in component.read_of_vocabulary()}
            measured = {"measured": checked_measure(component, values, options, _NUM_TOKENS)}
            made.add({name: value.detach() for name, value in measured.items()})  # as before the update
        if component.prepare:
            made.add(_prepared(component, options, made))
        made.add(measured)
        given = {one: made[one] for one in component.read_by_function()}
        returned: object = component.call(**component.arguments(made.optional(component) | given, options))
    except ConfigError:
        raise
    except Exception as error:  # whatever a user's code raises
        raise ConfigError(f"{name}: {error_text(error)}") from error
    for changed in made.changed():
        raise ConfigError(f"{name}: it changes {changed} in place: change a copy of it")
    return returned


def _prepared(component: LossComponent, options: Any, made: _MadeUp) -> Mapping[str, Any]:
    """Return what a component's ``prepare`` makes of made-up tokens."""
    values, _ = prepared(component, options, made, {})
    for changed in made.changed():
        raise ConfigError(f"prepare of {component.family} {component.name!r} changes {changed} in place: change a copy")
    return values


def prepared(
    component: LossComponent, options: Any, columns: Mapping[str, Any], memory: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the values of a component's ``prepare`` by name, and its new memory.

    Args:
        columns: the columns of the update by name.
        memory: the component's own memory.

    Raises:
        ConfigError: it raised an error of its own, or returned something else than values and a memory.
    """
    whose, function = f"prepare of {component.family} {component.name!r}", imported(component.prepare)
    names, parameters = component.read_by_prepare(), parameters_of(function)
    given = {name: memory if name == "memory" else columns[name] for name in names}
    given |= {name: getattr(options, name) for name in parameters if hasattr(options, name)}
    with blamed(whose):
        returned = function(**given, **({"options": options} if "options" in parameters else {}))
    if "memory" in names:
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
            raise ConfigError(f"{whose} takes memory, so it must return its values and the new memory, a dict")
        returned, memory = returned
        try:
            json.dumps(memory)
        except (TypeError, ValueError) as error:  # found here, and not when a checkpoint is written
            raise ConfigError(f"{whose} returned a memory of more than plain values: {error_text(error)}") from error
    if not isinstance(returned, Mapping):
        raise ConfigError(f"{whose} returned a {type(returned).__name__}, expected a dict of values by name")
    scale = float(returned.get("lr_scale", 1.0))
    if not (isfinite(scale) and scale >= 0):
        raise ConfigError(f"{whose} returned lr_scale={scale:g}, expected a factor of the learning rate from 0 on")
    return returned, memory


class _MadeUp(Mapping[str, Any]):
    """Made-up columns of a few tokens, also of those that a user declared."""

    def __init__(self, config: LossConfig) -> None:
        self._values = _made_up()
        if not config.needs_reference and not config.teacher:
            self._values["logprob_ref"] = None
        self._further: dict[str, Any] = {}
        self._before = {name: _copy(value) for name, value in self._values.items()}

    def add(self, prepared: Mapping[str, Any]) -> None:
        """Add what a ``prepare`` returned."""
        self._further |= prepared

    def optional(self, component: LossComponent) -> dict[str, Any]:
        """Return the values that a component's parameters with a default receive."""
        known = (
            *component.further,
            *self._further,
        )  # a column is given where a parameter has no default, as in training
        return {name: self[name] for name in known if component.reads(name)}

    def __getitem__(self, name: str) -> Any:
        if name in self._further:
            return self._further[name]
        if name not in self._values:
            made = COLUMNS._all().get(name)
            if made is None:
                raise ConfigError(f"nothing provides {name!r}: no column has that name, and no prepare returned it")
            counted = 1 + torch.arange(_NUM_TOKENS) // 3  # above 0, since many a function divides by a column
            found = counted if made.dtype == "int" else counted.float()
            self._values[name] = called_column(made, self) if made.phase == "update" else found
            self._before[name] = _copy(self._values[name])
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def changed(self) -> list[str]:
        """Return the names of the columns that somebody changed in place."""
        return [
            name
            for name, value in self._before.items()
            if isinstance(value, Tensor) and not torch.equal(value, self._values[name].detach())
        ]


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _made_up() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    values = {
        name: torch.rand(_NUM_TOKENS, generator=generator)
        for name in ("logprob", "logprob_old", "logprob_rollout", "entropy", "advantage", "logprob_ref", "log_rho_N")
    }
    logprob = values["logprob"].neg_().requires_grad_()
    values["entropy"].requires_grad_()
    rows = torch.arange(_NUM_TOKENS) // 3
    token = torch.arange(_NUM_TOKENS)
    others = torch.log((1 - logprob.exp()) / (_VOCABULARY - 1))
    is_token = torch.nn.functional.one_hot(token, _VOCABULARY).bool()
    return {
        **values,
        "ratio": (logprob + values["logprob_old"]).exp(),
        **{name: rows for name in ("row", "turn", "unit", "turn_index", "trajectory")},
        **{"demonstrated": rows > 1, "loss_weight": torch.full((_NUM_TOKENS,), 1 / _NUM_TOKENS)},
        **{"low": 0.8, "high": 1.2, "dual": None, "log_rho_M": values["log_rho_N"]},
        **{"logprob_teacher": values["logprob_ref"], "historical": values["logprob_ref"], "phase": 1.0},
        **{"weighing_weight": torch.ones(_NUM_TOKENS), "weighing_unit": None},
        **{"covariance": values["advantage"], "was_gated": rows > 1, "seed": 0},
        **{"episodes": (), "renderer": None},  # losses/episodes_trial.py tries them with episodes
        "log_distribution": torch.where(is_token, logprob[:, None], others[:, None]),
        "token": token,
        # two trajectories of one turn in a group, of which the first succeeded
        **{"group": torch.zeros_like(rows), "group_size": torch.full_like(rows, 2), "siblings": torch.zeros_like(rows)},
        **{name: (1 - rows).float() for name in ("reward", "success", "turn_reward")},
        **{"num_turns": torch.ones_like(rows), "policy_version": torch.zeros_like(rows)},
    }


def _check_gradient(component: LossComponent, term: Tensor) -> None:
    name = f"{component.family} {component.name}"
    if not term.requires_grad:
        raise ConfigError(f"{name}: its result has no gradient; logprob, ratio or entropy was detached")
    if not bool(term.isfinite().all()):
        raise ConfigError(f"{name}: it returned {term.detach().tolist()} for finite log-probabilities")


def checked_marks(component: LossComponent, returned: object, num_tokens: int) -> Tensor:
    """Return the tokens that a token mask marks, ``[M]`` booleans.

    Raises:
        ConfigError: it returned something else.
    """
    if isinstance(returned, Tensor) and returned.shape == (num_tokens,) and returned.dtype == torch.bool:
        return returned
    raise ConfigError(
        f"token mask {component.name}: expected True or False for each token, a tensor of booleans of shape "
        f"[{num_tokens}]; it returned {_described(returned)}"
    )


def checked_rows(component: LossComponent, returned: object, vocabulary: int | None = None) -> list[Row]:
    """Return the rows of an auxiliary loss.

    Args:
        vocabulary: number of tokens that the model knows; None if that is not known.

    Raises:
        ConfigError: it returned something else.
    """
    name = f"auxiliary loss {component.name}"
    if not isinstance(returned, Sequence) or not all(
        isinstance(row, Row) and "is_sampled" in row.columns for row in returned
    ):
        raise ConfigError(f"{name}: expected a list of WeightedRow, it returned {_described(returned)}")
    for row in returned:
        weights = row.columns["loss_weight"]
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise ConfigError(f"{name}: a row has weights that are not finite or below 0")
        ids = row.token_ids
        if ids and (min(ids) < 0 or (vocabulary is not None and max(ids) >= vocabulary)):
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise ConfigError(f"{name}: a row has the token id {wrong}, which the tokenizer does not have")
    return list(returned)


def checked_measure(component: LossComponent, values: Mapping[str, Any], options: Any, num_tokens: int) -> Tensor:
    """Return what a component's function of the whole vocabulary says of ``n`` tokens: ``[n]``, or ``[n, k]``.

    Raises:
        ConfigError: it returned something else.
    """
    returned = component.called_on_vocabulary(values, options)
    if component.measure and isinstance(returned, Tensor) and returned.ndim == 2 and len(returned) == num_tokens:
        return returned
    return checked_tokens(component, returned, num_tokens)


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
