"""WebForms: every kind can be solved, and nothing else than solving pays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from testkit.gui_pages import NEEDS_CHROMIUM

from agentgym.check import check_env
from agentgym.envs.gui.pool import close_browsers
from agentgym.envs.gui.web_forms.env import WebFormsEnv
from agentgym.envs.gui.web_forms.problems import KINDS
from agentgym.errors import ConfigError, EnvError, UnknownNameError
from agentgym.registry import make

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def env() -> Iterator[WebFormsEnv]:
    made = make("agentgym/WebForms-v0")
    assert isinstance(made, WebFormsEnv)
    yield made
    made.close()
    close_browsers()


@pytest.mark.parametrize("kind", KINDS)
def test_the_gold_policy_solves_every_kind(env: WebFormsEnv, kind: str) -> None:
    for split, first in (("train", 8), ("test", 0)):  # test_many_episodes_at_a_time has the first eight to train on
        for number, task in enumerate(env.tasks(split)[first : first + 8]):
            if task.data["kind"] != kind:
                continue
            env.reset(options={"task": task})
            for _ in range(30):
                _, reward, terminated, _, info = env.step(env.oracle())
                if terminated:
                    break
            assert (reward, info.get("success")) == (1.0, True), (number, env.office.submitted)


def test_a_wrong_submission_and_a_bare_done_earn_nothing(env: WebFormsEnv) -> None:
    form = next(task for task in env.tasks("train")[:8] if task.data["kind"] == "form")
    env.reset(options={"task": form})
    assert env.step("click: send")[1:3] == (0.0, True)
    for kind in KINDS:
        task = next(task for task in env.tasks("train")[:8] if task.data["kind"] == kind)
        env.reset(options={"task": task})
        assert env.step("done: nothing")[1:3] == (0.0, True)


def test_the_page_does_not_hold_the_goal(env: WebFormsEnv) -> None:
    for task in env.tasks("train")[:8]:
        env.reset(options={"task": task})
        problem = env.office.problem
        assert "goal" not in problem.data
        assert set(problem.data) <= {"fields", "columns", "rows", "items", "code", "switches", "themes"}


def test_many_episodes_at_a_time() -> None:
    async def play(number: int) -> bool:
        env = WebFormsEnv()
        await env.areset(options={"task": number})
        info: Mapping[str, Any] = {}
        for _ in range(30):
            _, _, terminated, _, info = await env.astep(env.oracle())
            if terminated:
                break
        await env.aclose()
        return bool(info["success"])

    async def play_all() -> list[bool]:
        return await asyncio.gather(*(play(number) for number in range(8)))

    assert asyncio.run(play_all()) == [True] * 8


def test_a_server_that_fails_is_an_env_error(env: WebFormsEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    calendar = next(task for task in env.tasks("train")[:8] if task.data["kind"] == "calendar")
    env.reset(options={"task": calendar})

    async def fail(request: object) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(env.office, "answer", fail)
    with pytest.raises(EnvError, match=r"site office\.localhost, POST /submit: RuntimeError: disk full"):
        env.step("click: book")


def test_kinds_are_chosen_by_name() -> None:
    assert {task.data["kind"] for task in WebFormsEnv(kinds=["list"]).tasks("valid")[:5]} == {"list"}
    with pytest.raises(UnknownNameError, match="unknown kind of problem 'forms'; did you mean 'form'"):
        WebFormsEnv(kinds=["forms"])
    with pytest.raises(ConfigError, match="at least one of form, remove"):
        WebFormsEnv(kinds=[])


@pytest.mark.slow
def test_it_conforms() -> None:
    report = check_env("agentgym/WebForms-v0", num_episodes=1, arguments={"max_turns": 8})
    assert [(check.name, check.detail) for check in report.failures] == []
