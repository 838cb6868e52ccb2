"""Evaluation: what is written, what is counted, what a resumed one plays again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym.env.tool_env import ToolEnv
from agentgym.errors import CorruptDataError, EpisodesFailedError, RunStoppedError, UsageError
from agentgym.evals.episodes import (
    PARTIAL_NAME,
    RECORD_NAME,
    ROWS_NAME,
    EpisodeFiles,
    key_of,
    read_groups,
    read_rows,
)
from agentgym.evals.policies import named_policy, scripted
from agentgym.evals.runner import EvalSummary, evaluate, load_summary, summarise
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.episode_notes import EpisodeNotes
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.pool import EnvPool
from agentgym.tool import tool
from agentgym.types import Message, Observation, Task, Trajectory

oracle = named_policy("oracle")

CONFIG = GroupConfig(group_size=4, max_retries=1, num_envs=2)


class Guess(ToolEnv):
    """Guess a number; tasks whose seed is in ``broken`` crash."""

    max_turns = 3
    broken: frozenset[int] = frozenset()
    starts: list[str] = []  # noqa: RUF012

    def start(self, task: Task) -> str:
        type(self).starts.append(task.id)
        if task.seed % 100 in self.broken:
            raise RuntimeError("the world is broken")
        self.secret = int(self.np_random.integers(1, 4))
        return "Guess my number between 1 and 3."

    @tool
    def guess(self, number: int) -> str:
        """Guess the number."""
        if number == self.secret:
            self.finish(1.0)
        return "Correct." if number == self.secret else "Wrong."

    def oracle(self) -> Message:
        return self.parse_action(f"guess: {self.secret}")


def run(
    out_dir: Path,
    make_agent: MakeAgent = oracle,
    *,
    env: type[Guess] = Guess,
    num_episodes: int = 6,
    resume: bool = False,
    seen: list[Trajectory] | None = None,
    config: GroupConfig = CONFIG,
) -> EvalSummary:
    env.starts = []
    seen = [] if seen is None else seen

    async def main() -> EvalSummary:
        pool = EnvPool(env, config.num_envs)
        try:
            return await evaluate(
                env().tasks("test")[:num_episodes],
                pool,
                make_agent,
                out_dir=out_dir,
                suite_or_env="Guess",
                policy="oracle",
                seed=5,
                group_config=config,
                resume=resume,
                on_episode=seen.append,
            )
        finally:
            await pool.close()

    return asyncio.run(main())


always_two = scripted(lambda env, observation, rng: env.parse_action("guess: 2"))


class Broken(Guess):
    broken = frozenset({1, 4})


def test_oracle_wins_and_everything_is_on_disk(tmp_path: Path) -> None:
    seen: list[Trajectory] = []
    summary = run(tmp_path, seen=seen)
    assert (summary.success, summary.success_high, summary.num_episodes, summary.num_failed) == (1.0, 1.0, 6, 0)
    assert summary.success_low == pytest.approx(0.6097, abs=1e-4)
    assert (summary.mean_return, summary.mean_turns, summary.mean_tokens) == (1.0, 1.0, 0.0)
    assert summary.statuses == {"completed": 6}
    assert len(seen) == 6
    assert load_summary(tmp_path) == summary
    rows = read_rows(tmp_path)
    assert {row["task_id"] for row in rows} == {f"test-{i}" for i in range(6)}
    assert set(rows[0]) == {
        "task_id", "content_hash", "seed", "status", "success", "return", "num_turns", "num_tokens", "num_retries",
        "error", "task_type", "num_prompt_tokens", "num_invalid_turns", "num_tool_errors", "seconds", "answer",
        "num_cached_tokens", "has_tokens", "num_attempts", "models", "cost", "num_truncated_completions",
    }  # fmt: skip
    groups = read_groups(tmp_path)
    assert [group.ordinal for group in groups] == [0, 1, 2, 3, 4, 5]
    assert all(len(group.trajectories) == 1 for group in groups)
    assert not (tmp_path / PARTIAL_NAME).exists()


def test_lost_episodes_are_counted_apart(tmp_path: Path) -> None:
    summary = run(tmp_path, env=Broken)
    assert (summary.num_episodes, summary.num_failed, summary.success) == (6, 2, 1.0)
    assert summary.statuses == {"completed": 4, "env_error": 2}
    assert Broken.starts.count("test-1") == 2  # played again once
    lost = next(row for row in read_rows(tmp_path) if row["task_id"] == "test-1")
    assert (lost["success"], lost["return"], lost["num_retries"]) == (None, None, 1)
    assert "the world is broken" in lost["error"]


def test_resume_plays_only_what_was_lost(tmp_path: Path) -> None:
    run(tmp_path, env=Broken)
    seen: list[Trajectory] = []
    summary = run(tmp_path, resume=True, seen=seen)
    assert sorted(Guess.starts) == ["test-1", "test-4"]
    assert sorted(t.task.id for t in seen) == ["test-1", "test-4"]
    assert (summary.num_episodes, summary.num_failed) == (6, 0)
    assert [group.task.id for group in read_groups(tmp_path)] == [f"test-{i}" for i in range(6)]
    assert summary == run(tmp_path, resume=True)
    assert Guess.starts == []


class Lost(Guess):
    """The number, when nothing works any more."""

    broken = frozenset(range(100))

    async def areset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        for _ in range(50):  # gives the event loop turns in which others are cancelled
            await asyncio.sleep(0)
        return await super().areset(seed=seed, options=options)


def test_an_evaluation_stops_when_too_many_have_failed_and_resumes(tmp_path: Path) -> None:
    seen: list[Trajectory] = []
    with pytest.raises(EpisodesFailedError, match=r"2[0-9] of 2[0-9] episodes failed .* the world is broken"):
        run(tmp_path, env=Lost, num_episodes=40, seen=seen)
    assert 21 <= len(seen) <= 24, "more than half of 40, and those that were under way"
    summary = run(tmp_path, num_episodes=40, resume=True)
    assert (summary.num_episodes, summary.num_failed, summary.success) == (40, 0, 1.0)


def test_an_evaluation_that_is_to_go_on_in_spite_of_failures_goes_on(tmp_path: Path) -> None:
    seen: list[Trajectory] = []
    with pytest.raises(RunStoppedError, match="none of 40 episodes is valid"):
        run(tmp_path, env=Lost, num_episodes=40, seen=seen, config=replace(CONFIG, max_failure_rate=1.0))
    assert len(seen) == 40


def test_failures_in_a_row_are_noted_once(tmp_path: Path) -> None:
    seen: list[Trajectory] = []
    with pytest.raises(RunStoppedError):
        run(tmp_path, env=Lost, num_episodes=10, seen=seen)
    notes: list[str] = []
    watched = EpisodeNotes(notes.append)
    for trajectory in seen[:7]:
        watched.watch(trajectory)
    assert notes == []
    for trajectory in seen:
        watched.watch(trajectory)
    (note,) = notes
    assert note.startswith("note: the last 8 episodes failed because of the infrastructure, at last: ")
    assert "the world is broken" in note


def test_a_resume_that_fails_again_keeps_the_result(tmp_path: Path) -> None:
    first = run(tmp_path, env=Broken)
    again = run(tmp_path, env=Broken, resume=True)  # 2 of 2 new episodes fail, but 2 of all 6
    assert sorted(set(Broken.starts)) == ["test-1", "test-4"]
    assert (again.num_episodes, again.num_failed, again.statuses) == (6, 2, first.statuses)
    assert load_summary(tmp_path) == again


def test_resume_gives_what_an_uninterrupted_run_gives(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", always_two, num_episodes=12)
    assert 0 < whole.success < 1
    run(tmp_path / "cut", always_two, num_episodes=5)
    cut = run(tmp_path / "cut", always_two, num_episodes=12, resume=True)
    assert len(Guess.starts) == 7
    assert (cut.success, cut.mean_turns, cut.statuses) == (whole.success, whole.mean_turns, whole.statuses)


def test_resume_after_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def stop_after_three(trajectory: Trajectory) -> None:
        if len(read_rows(tmp_path)) == 3:
            raise Killed

    async def main() -> None:
        await evaluate(
            Guess().tasks("test")[:6], EnvPool(Guess, 1), oracle, out_dir=tmp_path, suite_or_env="Guess",
            policy="oracle", seed=5, group_config=CONFIG, on_episode=stop_after_three,
        )  # fmt: skip

    with pytest.raises(BaseException):  # noqa: B017  (Killed, in a group or bare)
        asyncio.run(main())
    for name in (ROWS_NAME, PARTIAL_NAME):
        with open(tmp_path / name, "a") as out:
            out.write('{"task_id": "test-')
    assert not (tmp_path / RECORD_NAME).exists()
    with pytest.raises(CorruptDataError, match="did not finish"):
        load_summary(tmp_path)
    num_kept = len(read_groups(tmp_path))
    assert 3 <= num_kept < 6  # the others are stopped, but not before the one whose turn it is
    summary = run(tmp_path, resume=True)
    assert len(Guess.starts) == 6 - num_kept
    assert (summary.num_episodes, len(read_groups(tmp_path))) == (6, 6)


def test_another_seed_is_another_episode_and_no_resume_starts_over(tmp_path: Path) -> None:
    run(tmp_path)
    run(tmp_path)
    assert len(Guess.starts) == 6
    assert len(read_rows(tmp_path)) == 6


def test_too_many_lost_stops_with_the_reason_and_can_be_resumed(tmp_path: Path) -> None:
    class Dead(Guess):
        broken = frozenset(range(1, 100))

    with pytest.raises(RunStoppedError, match="the world is broken"):
        run(tmp_path, env=Dead)
    assert not (tmp_path / "summary.json").exists()
    run(tmp_path, resume=True)
    assert len(Guess.starts) == 5
    lenient = GroupConfig(max_retries=0, max_failure_rate=1.0)

    class AllDead(Guess):
        broken = frozenset(range(100))

    with pytest.raises(RunStoppedError, match="none of 6 episodes is valid"):
        run(tmp_path, env=AllDead, config=lenient)


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no tasks"):
        run(tmp_path, num_episodes=0)
    (tmp_path / ROWS_NAME).write_text('{"task_id": "x"}\n{}\n')
    with pytest.raises(CorruptDataError, match="line 1"):
        run(tmp_path, resume=True)
    row = {"task_id": "x", "content_hash": "y", "seed": 0, "status": "completed", "success": True, "return": 1.0}
    for edited in ({"success": "yes"}, {"return": "1"}):
        (tmp_path / ROWS_NAME).write_text(json.dumps(row | edited) + "\n")
        with pytest.raises(CorruptDataError, match=f"line 1: not an episode .*{next(iter(edited))} is "):
            read_rows(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps({"policy": "oracle"}))
    with pytest.raises(CorruptDataError, match="not an evaluation's summary"):
        load_summary(tmp_path)


def test_scripted_policies_draw_from_the_episodes_seed(tmp_path: Path) -> None:
    drawn = scripted(lambda env, observation, rng: env.parse_action(f"guess: {rng.integers(1, 4)}"))
    run(tmp_path / "a", drawn)
    run(tmp_path / "b", drawn)
    texts = [
        [turn.action.text for group in read_groups(tmp_path / name) for turn in group.trajectories[0].turns]
        for name in ("a", "b")
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1


def test_returns_that_cancel_are_zero() -> None:
    """Ten costs of 0.1 leave -1.1e-16 of a reward of 1, which a table would show as -1.11e-16."""
    left = 1.0 + sum(-0.1 for _ in range(10))
    about = {"task_id": "0", "content_hash": "0", "status": "completed", "success": False, "num_turns": 1}
    row = about | {"num_tokens": 0, "return": -abs(left), "seed": 1, "has_tokens": False}
    assert left != 0
    found = summarise([row], suite_or_env="e", policy="p", run_dir=Path("r"))
    assert f"{found.mean_return:.3g}" == "0"


def test_rows_are_in_the_order_of_tasks_in_whatever_order_episodes_end(tmp_path: Path) -> None:
    run(tmp_path / "whole", always_two, num_episodes=6)
    files = EpisodeFiles(tmp_path / "late", resume=False)
    for group in reversed(read_groups(tmp_path / "whole")):
        files.add(group)
    files.finish()
    ended = [[key_of(row) for row in read_rows(tmp_path / name)] for name in ("whole", "late")]
    assert ended[0] == ended[1] == list(files.rows)
    assert [key[0] for key in ended[0]] == [f"test-{number}" for number in range(6)]
