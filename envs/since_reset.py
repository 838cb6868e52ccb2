"""Attributes that an environment has only after its first reset."""

from __future__ import annotations

from typing import Generic, NoReturn, TypeVar, overload

from agentgym.env.env import Env
from agentgym.errors import ResetNeededError

Value = TypeVar("Value")


class SinceReset(Generic[Value]):
    """An attribute that ``start`` sets. Reading it earlier raises :class:`~agentgym.errors.ResetNeededError`.

    Example:
        >>> class Dice(Env):
        ...     points = SinceReset[int]()
        ...     def start(self, task):
        ...         self.points = 6
        ...         return "Thrown."
        >>> env = Dice()
        >>> env.points
        Traceback (most recent call last):
        agentgym.errors.ResetNeededError: Dice: no points before reset()
        >>> observation, info = env.reset(seed=0)
        >>> env.points
        6
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name.strip("_").replace("_", " ")

    @overload
    def __get__(self, env: None, owner: type) -> SinceReset[Value]: ...
    @overload
    def __get__(self, env: Env, owner: type) -> Value: ...
    def __get__(self, env: Env | None, owner: type) -> SinceReset[Value] | Value:
        # Called only until the attribute is set: an instance attribute hides a descriptor without __set__.
        return self if env is None else self._refuse(env)

    def _refuse(self, env: Env) -> NoReturn:
        raise ResetNeededError(f"{env.env_id}: no {self._name} before reset()")
