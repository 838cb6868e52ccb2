"""A domain of one's own: a task whose gold action is rejected is a fault of the task."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.check import check_env
from agentgym.envs.domains.env import DomainEnv
from agentgym.envs.domains.task import Case, DomainTask, GoldAction, Scenario
from agentgym.envs.domains.toolkit import Toolkit
from agentgym.evals.policies import named_policy
from agentgym.rollout.loop import run_episode
from agentgym.rollout.request import RolloutRequest
from agentgym.tool import tool
from agentgym.types import Status, Task, Trajectory


class Books(Toolkit):
    """Tools over books."""

    writes = frozenset({"lend"})

    @tool
    def lend(self, book: str) -> str:
        """Lend a book.

        Args:
            book: Its title.
        """
        self.need("books", book, "book")
        self.db.edit("books", book)["is_out"] = True
        return "Lent."


class Library(DomainEnv):
    """Lend the book that the task names."""

    toolkit_class = Books
    title = "Emma"
    allows_rejected = False

    def case_of(self, task: Task) -> Case:
        return Case(
            policy="Ask for a yes before you lend anything.",
            tables={"books": {"Emma": {"is_out": False}}},
            task=DomainTask(
                id=task.id,
                scenario=Scenario(reason_for_call="I want a book.", known_info=""),
                actions=[GoldAction("lend", {"book": self.title})],
                allows_rejected=self.allows_rejected,
            ),
        )


class Misspelt(Library):
    """Lend a book that the database does not have."""

    title = "Emmma"


class Recorded(Misspelt):
    """Ignore the rejected action."""

    allows_rejected = True


def play(env: DomainEnv) -> Trajectory:
    request = RolloutRequest(task=env.tasks("test")[0], make_agent=named_policy("oracle"))
    try:
        return asyncio.run(run_episode(env, request))
    finally:
        env.close()


@pytest.mark.parametrize("cls", [Library, Recorded])
def test_the_oracle_wins_a_fair_task_and_one_that_allows_a_rejected_action(cls: type[DomainEnv]) -> None:
    played = play(cls())
    assert (played.status, played.success) == (Status.COMPLETED, True)


def test_a_task_with_a_rejected_gold_action_fails_and_names_it() -> None:
    played = play(Misspelt())
    assert played.status is Status.ENV_ERROR
    assert "gold action 'lend: Emmma' is rejected" in str(played.error)


def test_the_check_of_an_environment_names_a_rejected_gold_action() -> None:
    report = check_env(Misspelt, num_episodes=2)
    assert any("gold action 'lend: Emmma' is rejected" in one.detail for one in report.failures)
