"""Check the results of a user's components, which may have any type and shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from agentgym.credit.component import CreditComponent
from agentgym.credit.parts import Modulated, Shaped
from agentgym.credit.table import Bools, TurnAdvantages, TurnTable
from agentgym.errors import ConfigError


def checked_advantages(component: CreditComponent, result: object, table: TurnTable) -> TurnAdvantages:
    """Return an estimator's result, with lists and other number types as arrays of float64.

    Raises:
        ConfigError: it is no :class:`TurnAdvantages`, or an array has another shape or numbers that are not finite.
    """
    if isinstance(result, TurnAdvantages) and not component.is_own:
        return result
    made = _of_type(component, result, TurnAdvantages, "agentgym.credit.table.TurnAdvantages", "return_to_go=...")
    checked: TurnAdvantages = _checked(
        component, made, table, ("advantage", "return_to_go"), ("token_advantage", "token_return")
    )
    return checked


def checked_modulation(component: CreditComponent, result: object, table: TurnTable) -> Modulated:
    """Return a modulator's result, with lists and other number types as arrays of float64.

    Raises:
        ConfigError: it is no :class:`Modulated`, or an array has another shape or numbers that are not finite.
    """
    if isinstance(result, Modulated) and not component.is_own:
        return result
    made: Modulated = _of_type(component, result, Modulated, "agentgym.credit.parts.Modulated", "")
    made = _checked(component, made, table, ("advantage",), ("token_advantage",))
    if made.token_keep is None:
        return made
    return replace(made, token_keep=_mask(component, "token_keep", made.token_keep, _num_tokens(table), "token"))


def checked_shaping(component: CreditComponent, result: object, table: TurnTable) -> Shaped:
    """Return a shaper's result.

    Raises:
        ConfigError: it is no :class:`Shaped`, or its table has other rows or rewards that are not finite.
    """
    if isinstance(result, Shaped) and not component.is_own:
        return result
    made: Shaped = _of_type(component, result, Shaped, "agentgym.credit.parts.Shaped", "")
    if not isinstance(made.table, TurnTable) or len(made.table) != len(table):
        raise ConfigError(
            f"{_named(component)} returned no table of the {len(table)} turns that it was given; "
            "dataclasses.replace(table, reward=...) makes one"
        )
    reward = _numbers(component, "rewards", made.table.reward, len(table), "turn")
    shaped = replace(made, table=replace(made.table, reward=reward))
    if made.gate_open is None:
        return shaped
    return replace(shaped, gate_open=_mask(component, "gate_open", made.gate_open, len(table), "turn"))


def checked_selection(component: CreditComponent, result: object, table: TurnTable) -> tuple[Bools, Bools | None]:
    """Return the rows ``[N]`` that a selection keeps, and the tokens ``[M]`` that it keeps, None for all.

    Raises:
        ConfigError: a mask has another shape, or holds something else than True and False.
    """
    rows, tokens = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    kept = _mask(component, "rows", rows, len(table), "turn")
    return kept, None if tokens is None else _mask(component, "tokens", tokens, _num_tokens(table), "token")


def _of_type(component: CreditComponent, result: object, expected: Any, path: str, more: str) -> Any:
    if isinstance(result, expected):
        return result
    arguments = ", ".join(filter(None, ["table=..." if expected is Shaped else "advantage=...", more]))
    raise ConfigError(f"{_named(component)} returned {type(result).__name__}, expected {path}({arguments})")


def _checked(
    component: CreditComponent, made: Any, table: TurnTable, per_turn: tuple[str, ...], per_token: tuple[str, ...]
) -> Any:
    arrays = {name: _numbers(component, name, getattr(made, name), len(table), "turn") for name in per_turn}
    for name in per_token:
        if getattr(made, name) is not None:
            arrays[name] = _numbers(component, name, getattr(made, name), _num_tokens(table), "sampled token")
    if made.loss_weight is not None:
        weight = arrays["loss_weight"] = _numbers(component, "loss_weight", made.loss_weight, len(table), "turn")
        if (weight < 0).any():
            raise ConfigError(f"{_named(component)} returned a loss_weight of {weight.min():g}, expected 0 or more")
    return replace(made, **arrays)


def _numbers(component: CreditComponent, name: str, value: Any, size: int, unit: str) -> Any:
    given = np.asarray(value)
    if given.shape != (size,):
        raise ConfigError(
            f"{_named(component)} returned {name} of shape {given.shape}, expected ({size},): one number per {unit} of "
            "its table"
        )
    if given.dtype.kind not in "biuf":
        raise ConfigError(f"{_named(component)} returned {name} of type {given.dtype}, expected numbers")
    if not np.isfinite(given).all():
        at = int(np.flatnonzero(~np.isfinite(given))[0])
        raise ConfigError(
            f"{_named(component)} returned {name} {given[at]} for {'row' if unit == 'turn' else unit} {at} of its "
            "table, expected finite numbers: look for a division by 0, as in a group of equal returns"
        )
    return given.astype(np.float64, copy=not given.flags.writeable)


def _mask(component: CreditComponent, name: str, value: Any, size: int, unit: str) -> Bools:
    given = np.asarray(value)
    if given.shape != (size,) or (given.dtype != np.bool_ and size):
        raise ConfigError(
            f"{_named(component)} returned {name} of type {given.dtype} and shape {given.shape}, expected a mask of "
            f"shape ({size},): True or False for each {unit}"
        )
    return given.astype(np.bool_, copy=False)


def _num_tokens(table: TurnTable) -> int:
    return 0 if table.num_tokens is None else int(table.num_tokens.sum())


def _named(component: CreditComponent) -> str:
    return f"{component.family} {component.name!r}"
