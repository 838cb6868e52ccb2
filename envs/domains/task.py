"""Tasks of domains, read from records of tau2's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym.envs.domains.database import Tables
from agentgym.errors import CorruptDataError


@dataclass(frozen=True, slots=True)
class GoldAction:
    """A call that leads to what the user wants. Some are recorded wrong turns, which the tools refuse."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The user and their wish, in words; what is not known is empty."""

    reason_for_call: str
    known_info: str = ""
    unknown_info: str = ""
    task_instructions: str = ""
    persona: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainTask:
    """A task: the user's scenario, the actions that solve it, and what the user has to be told.

    ``script`` is what a scripted user goes by, where the domain has one; tau2's own tasks have none.
    """

    id: str
    scenario: Scenario
    actions: Sequence[GoldAction]
    communicate_info: Sequence[str] = ()
    script: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that an episode begins with."""

    policy: str
    tables: Tables
    task: DomainTask


def task_of_record(record: Mapping[str, Any]) -> DomainTask:
    """A task from an entry of tau2's ``tasks.json``.

    Raises:
        CorruptDataError: a part that is needed is missing, or the task begins elsewhere than at the database's start.

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
            actions=tuple(GoldAction(one["name"], one["arguments"]) for one in criteria.get("actions") or ()),
            communicate_info=tuple(criteria.get("communicate_info") or ()),
            script=user.get("script") or {},
        )
    except (KeyError, TypeError, AttributeError) as error:
        name = record.get("id") if isinstance(record, Mapping) else record
        raise CorruptDataError(
            f"task {name!r} is not in tau2's format ({type(error).__name__}: {error}); expected id, "
            "user_scenario.instructions and evaluation_criteria.actions with name and arguments"
        ) from error
