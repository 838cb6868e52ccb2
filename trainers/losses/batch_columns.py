"""Columns of a micro-batch's tokens by name, for the components of the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from agentgym.errors import ConfigError, blamed
from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.columns import COLUMNS, Column
from agentgym.trainers.losses.component import LossComponent


class BatchColumns(Mapping[str, Any]):
    """The columns of a micro-batch's tokens by name, ``[N]`` each, computed when they are asked for.

    Args:
        batch: the micro-batch.
        scores: scores of its tokens by models, such as ``logprob``.
        further: values of one component, which precede columns of the same name.
    """

    def __init__(
        self, batch: Batch, scores: Mapping[str, Tensor | None], further: Mapping[str, Any] | None = None
    ) -> None:
        self._batch, self._scores, self._further = batch, scores, further or {}

    def __getitem__(self, name: str) -> Any:
        if name in self._further:
            return self._further[name]
        if name in self._scores:
            return self._scores[name]
        made = COLUMNS._all().get(name)
        if made is not None and made.phase == "update":
            return called_column(made, self)
        return self._batch[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._further, *self._scores))

    def __len__(self) -> int:
        return len(self._further) + len(self._scores)

    def arguments(self, component: LossComponent, options: Any) -> dict[str, Any]:
        """Return the arguments of a component's function: what it must have, and what its defaults stand for."""
        given = {name: self[name] for name in component.read_by_function()}
        optional = {name: value for name, value in self._further.items() if component.reads(name)}
        return component.arguments(optional | given, options)


def called_column(made: Column, values: Mapping[str, Any]) -> Tensor:
    """Return a column of phase ``update`` over some tokens.

    Raises:
        ConfigError: its function raised an error or returned something else than a number per token.
    """
    given = {name: values[name] for name in made.parameters}
    with blamed(f"column {made.name!r}"):
        returned = made.call(**given)
    count = len(next(iter(given.values())))
    if isinstance(returned, Tensor) and returned.shape == (count,):
        return returned
    shape = f"a tensor of shape {list(returned.shape)}" if isinstance(returned, Tensor) else type(returned).__name__
    raise ConfigError(f"column {made.name!r} returned {shape}, expected a tensor of shape [{count}]")
