"""TextWorld itself: games it makes, won by its own plan through the adapter; skipped where it is not installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentgym.check import check_env
from agentgym.envs.adapters.textworld import SETTINGS, TextWorldEnv
from agentgym.errors import ResetNeededError, UnknownNameError

pytest.importorskip("textworld", reason="needs the package textworld (the extra textworld)")


@pytest.fixture
def env() -> Iterator[TextWorldEnv]:
    made = TextWorldEnv(interface="text")
    yield made
    made.close()


@pytest.mark.parametrize("game", sorted(SETTINGS))
def test_the_engines_plan_reaches_the_whole_score(game: str) -> None:
    env = TextWorldEnv(game=game, interface="text")
    for number in (1, 2):
        env.reset(options={"task": number})
        rewards, terminated = [], False
        while not terminated:
            action = env.oracle()
            assert action.text in env.admissible_actions()
            _, reward, terminated, truncated, info = env.step(action)
            rewards.append(reward)
            assert info["is_valid"] and not truncated
        assert info["success"] and sum(rewards) == pytest.approx(1.0) and min(rewards) >= 0
    env.close()


def test_the_recorded_walkthrough_wins_too(env: TextWorldEnv) -> None:
    import textworld

    from agentgym.envs.adapters.textworld_worker import Game

    task = env.tasks("train")[3]
    path = Game()._made(task.data["game"], dict(task.data["settings"]), task.seed)
    game = textworld.start(str(path), request_infos=textworld.EnvInfos(extras=["walkthrough"], max_score=True))
    walkthrough = game.reset()["extra.walkthrough"]
    for command in walkthrough:
        score, is_over = game.step(command)[1:]
    game.close()
    env.reset(options={"task": task})
    for command in walkthrough:
        _, _, terminated, _, info = env.step(command)
    assert (is_over, score > 0) == (True, True)
    assert (terminated, info["success"]) == (True, True)


def test_texts_are_the_games_words(env: TextWorldEnv) -> None:
    said = env.reset(options={"task": 1})[0][0].text
    assert "Your objective" in said or "task" in said
    assert "$$$" not in said and not said.endswith(">")
    said = env.step("inventory")[0][0].text
    assert said.startswith("You are carrying") and "-= " not in said


def test_a_key_is_of_the_state_alone(env: TextWorldEnv) -> None:
    env.reset(options={"task": 1})
    start = env.state_key()
    for command in ("look", "inventory", "dance", "  "):
        env.step(command)
    assert env.state_key() == start
    env.step(env.oracle())
    assert env.state_key() != start


def test_the_interpreters_own_commands_are_refused(env: TextWorldEnv) -> None:
    env.reset(options={"task": 1})
    env.step(env.oracle())
    key = env.state_key()
    for command in ("undo", "restart", "QUIT", "save", "restore", "xyzzy the plugh"):
        _, reward, terminated, _, info = env.step(command)
        assert (reward, terminated, info["is_valid"]) == (0.0, False, False)
        assert env.state_key() == key


@pytest.mark.parametrize("separator", [" then ", ". ", ", then ", " and THEN "])
@pytest.mark.parametrize("game", ["custom", "tw-cooking", "tw-simple"])
def test_commands_in_one_line_earn_what_they_earn_alone(game: str, separator: str) -> None:
    """The engine misses points of a line with two events, or fails there."""
    env = TextWorldEnv(game=game, interface="text")
    env.reset(options={"task": 2})
    plan, terminated = [], False
    while not terminated:
        plan.append(env.oracle().text)
        terminated = env.step(plan[-1])[2]
    env.reset(options={"task": 2})
    lines = [separator.join(plan[at : at + 2]) for at in range(0, len(plan), 2)]
    steps = [env.step(line) for line in lines]
    assert steps[-1][2] and steps[-1][4]["success"] and sum(step[1] for step in steps) == pytest.approx(1.0)
    env.close()


def test_a_line_hides_no_command_of_the_interpreter(env: TextWorldEnv) -> None:
    env.reset(options={"task": 1})
    env.step(env.oracle())
    key = env.state_key()
    for command in ("look. undo", "look then RESTART", "look, then quit", "look. save", ".", "then"):
        _, reward, terminated, _, info = env.step(command)
        assert (reward, terminated, info["is_valid"]) == (0.0, False, False), command
        assert env.state_key() == key


def test_what_would_hang_the_interpreter_never_reaches_it(env: TextWorldEnv) -> None:
    env.reset(options={"task": 1})
    for command in ("\x00\x1b[2J\x7f", "go \ud800", "a" * 100_000, "caf\u00e9"):
        assert not env.step(command)[4]["is_valid"]
    assert env.step(env.oracle())[4]["is_valid"]


def test_a_snapshot_is_replayed_in_another_instance(env: TextWorldEnv) -> None:
    env.reset(options={"task": 2})
    env.step(env.oracle())
    snapshot = env.snapshot()
    other = TextWorldEnv(interface="text")
    other.restore(snapshot)
    assert other.state_key() == env.state_key() and other.oracle() == env.oracle()
    other.close()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'tw-cooking'"):
        TextWorldEnv(game="tw-cook")
    with pytest.raises(UnknownNameError, match="rooms"):
        TextWorldEnv(settings={"room": 2})
    with pytest.raises(ResetNeededError):
        TextWorldEnv().state_key()


def test_the_contract_is_kept() -> None:
    report = check_env(lambda: TextWorldEnv(interface="text"), num_episodes=1)
    assert report.passed, report.failures
