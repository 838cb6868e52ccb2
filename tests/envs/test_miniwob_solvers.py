"""The scripted policies solve their tasks, and what is wrong is not paid."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from miniwob_episodes import NEEDS_MINIWOB

from agentgym.envs.gui.miniwob.env import MiniWoBEnv
from agentgym.envs.gui.miniwob.solvers import SOLVERS
from agentgym.envs.gui.pool import close_browsers
from agentgym.errors import UsageError

pytestmark = NEEDS_MINIWOB
MAIL = tuple(name for name in SOLVERS if name.startswith("email"))
NUM_SEEDS = 20


@pytest.fixture(scope="module")
def env() -> Iterator[MiniWoBEnv]:
    made = MiniWoBEnv(max_turns=25, success_above=0.99)
    yield made
    made.close()
    close_browsers()


def is_ambiguous(env: MiniWoBEnv) -> bool:
    """True where two mails have the sender that the goal names: the page means one of them and does not say which."""
    sender = env.goal.split(" by ")[-1].split(" ")[0]
    return env.task.data["task"] in MAIL and sum(node.name == sender for node in env.page.nodes) > 1


def solved(env: MiniWoBEnv, name: str, seed: int) -> bool:
    """Whether the policy earned all of the reward."""
    env.reset(options={"task": f"{name}-{seed}"})
    if is_ambiguous(env):
        return True
    while True:
        _, reward, terminated, truncated, info = env.step(env.oracle())
        if terminated or truncated:
            assert info["success"] == (reward == 1.0)
            return bool(info["success"])


def test_there_are_enough() -> None:
    assert len(SOLVERS) >= 40


def test_a_task_without_a_policy_says_so(env: MiniWoBEnv) -> None:
    env.reset(options={"task": "draw-circle-0"})
    with pytest.raises(UsageError, match="no oracle for 'draw-circle'; it has one for click-test"):
        env.oracle()


@pytest.mark.parametrize("name", ["click-button", "enter-text", "click-tab-2", "count-shape", "choose-date-easy"])
def test_a_few_tasks_are_solved(env: MiniWoBEnv, name: str) -> None:
    assert [seed for seed in range(3) if not solved(env, name, seed)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_every_policy_solves_its_task(env: MiniWoBEnv, name: str) -> None:
    assert [seed for seed in range(NUM_SEEDS) if not solved(env, name, seed)] == []


# Legal and wrong: sent without doing anything, or done to something else than what is meant.
WRONG = {
    **dict.fromkeys(SOLVERS, "submit"),
    **dict.fromkeys(
        (
            "click-test-2",
            "click-test-transfer",
            "click-button-sequence",
            "click-button",
            "unicode-test",
            "click-dialog-2",
            "buy-ticket",
            "click-widget",
            "focus-text-2",
            "click-color",
            "count-shape",
            "identify-shape",
            "grid-coordinate",
            "click-shape",
            "click-link",
        ),
        "other",
    ),
}
ROLES = {"focus-text-2": "textbox", "click-widget": "", "click-color": "generic", "grid-coordinate": "generic"}
ROLES |= {"click-shape": "clickable", "click-link": "clickable"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_what_is_wrong_is_not_paid(env: MiniWoBEnv, name: str) -> None:
    """Where the page ends an episode at all upon it, it gives nothing or less."""
    for seed in range(20):  # until one where there is something else to click
        env.reset(options={"task": f"{name}-{seed}"})
        if (action := wrong_action(env, name)) is None:
            continue
        _, reward, terminated, _, _ = env.step(action)
        if terminated:
            assert reward == 0.0
            assert env.raw_reward is not None and env.raw_reward <= 0
        else:
            assert reward == 0.0
        return
    assert name in ("click-test", "click-dialog", "focus-text"), "nothing wrong can be done there"


def wrong_action(env: MiniWoBEnv, name: str) -> str | None:
    """A legal action that is not what the task asks for; None if there is none."""
    nodes = [node for node in env.page.nodes if node.id]
    if WRONG[name] == "submit":
        found = [
            node for node in nodes if node.role in ("button", "clickable") and node.name in ("Submit", "Login", "OK")
        ]
        return f"click: {found[0].id}" if found else None
    right = env.oracle().calls[0].arguments["id"]  # type: ignore[union-attr]
    name_of_right = env.page.by_id[right].name
    role = ROLES.get(name, "button")
    others = [
        node
        for node in nodes
        if node.id != right and node.role.startswith(role) and (name_of_right == "" or node.name != name_of_right)
    ]
    return f"click: {others[-1].id}" if others else None
