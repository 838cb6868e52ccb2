"""Tasks of domains, read from records in tau2's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym.envs.domains.database import Tables
from agentgym.errors import CorruptDataError, error_text


@dataclass(frozen=True, slots=True)
class GoldAction:
    """A call of the reference solution. Some are recorded mistakes, which the tools reject."""

    name: str
    arguments: Mapping[str, object]
    requestor: str = "assistant"
    """``user`` for calls of the user's own tools."""
    compared: tuple[str, ...] | None = None
    """Names of the arguments that must be equal for a call to match; None for all."""

    def is_made_by(self, name: str, arguments: Mapping[str, object]) -> bool:
        """Return True if a call is this action.

        Example:
            >>> GoldAction("transfer", {"summary": "x"}, compared=()).is_made_by("transfer", {"summary": "y"})
            True
        """
        if name != self.name:
            return False
        if self.compared is None:
            return dict(arguments) == dict(self.arguments)
        missing = object()
        return all(arguments.get(key, missing) == self.arguments.get(key, missing) for key in self.compared)


@dataclass(frozen=True, slots=True)
class EnvCall:
    """A function of the environment that a task calls for its setup or its final checks."""

    side: str
    """``assistant`` for functions of the database, ``user`` for functions of the user's devices."""
    name: str
    arguments: Mapping[str, Any]
    wanted: bool = True
    """Value that a check requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The user's situation and request as texts; unknown parts are empty."""

    reason_for_call: str
    known_info: str = ""
    unknown_info: str = ""
    task_instructions: str = ""
    persona: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainTask:
    """A task: the user's scenario, the actions that solve it, and the information that the user must be told.

    ``script`` is the data of a domain's scripted user; tau2's own tasks have none.
    """

    id: str
    scenario: Scenario
    actions: Sequence[GoldAction]
    communicate_info: Sequence[str] = ()
    script: Mapping[str, Any] = field(default_factory=dict)
    setup: Sequence[EnvCall] = ()
    """Calls that change the database before the task begins."""
    checks: Sequence[EnvCall] = ()
    """Checks that must hold at the end, if they are graded."""
    needs_actions: bool = False
    """True if all gold actions must be made, in addition to other conditions."""
    allows_rejected: bool = False
    """True if a gold action may be one that its tool rejects, as in tau2's own tasks; it changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The initial data of an episode."""

    policy: str
    tables: Tables
    task: DomainTask


def task_of_record(record: Mapping[str, Any]) -> DomainTask:
    """Parse an entry of tau2's ``tasks.json``.

    Raises:
        CorruptDataError: a required part is missing, or the task has an initial state.

    Example:
        >>> task = task_of_record({
        ...     "id": "0",
        ...     "user_scenario": {"instructions": {"reason_for_call": "Cancel order #W1."}},
        ...     "evaluation_criteria": {"actions": [{"name": "cancel", "arguments": {"order_id": "#W1"}}]},
        ... })
        >>> task.actions[0].arguments
        {'order_id': '#W1'}
    """
    try:
        if record.get("initial_state"):
            raise CorruptDataError(f"task {record['id']!r} has an initial_state, which is not supported")
        user, criteria = record["user_scenario"], record["evaluation_criteria"] or {}
        told = user["instructions"]
        told = {"reason_for_call": told} if isinstance(told, str) else told
        return DomainTask(
            id=str(record["id"]),
            scenario=Scenario(
                reason_for_call=told["reason_for_call"],
                known_info=told.get("known_info") or "",
                unknown_info=told.get("unknown_info") or "",
                task_instructions=told.get("task_instructions") or "",
                persona=user.get("persona") or "",
            ),
            actions=tuple(_action(one) for one in criteria.get("actions") or ()),
            communicate_info=tuple(criteria.get("communicate_info") or ()),
            script=user.get("script") or {},
            allows_rejected=True,
        )
    except (KeyError, TypeError, AttributeError) as error:
        name = record.get("id") if isinstance(record, Mapping) else record
        raise CorruptDataError(
            f"task {name!r} is not in tau2's format ({error_text(error)}); expected id, "
            "user_scenario.instructions and evaluation_criteria.actions with name and arguments"
        ) from error


def _action(record: Mapping[str, Any]) -> GoldAction:
    compared = record.get("compare_args")
    return GoldAction(
        name=record["name"],
        arguments=record["arguments"],
        requestor=record.get("requestor") or "assistant",
        compared=None if compared is None else tuple(compared),
    )
