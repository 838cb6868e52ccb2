"""Policies of several attempts: what is played, what the next attempt is told, which counts, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentgym.env.env import Env
from agentgym.env.tool_env import ToolEnv
from agentgym.errors import ConfigError, EngineError, UnknownNameError, UsageError
from agentgym.evals.attempts import Attempts, open_attempts
from agentgym.evals.episodes import read_groups, read_rows
from agentgym.evals.policies import scripted
from agentgym.evals.prices import Price
from agentgym.evals.runner import EvalSummary, evaluate
from agentgym.rollout.agent import Agent, Decision, MakeAgent
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.pool import EnvPool
from agentgym.scoring.component import scorer
from agentgym.tool import tool
from agentgym.types import Latency, Message, Observation, Task, ToolSpec, Trajectory, Turn, Usage

CONFIG = GroupConfig(group_size=1, min_valid=1, max_retries=1, num_envs=2)
HALF_S = Latency(generate_s=0.5)


class Safe(ToolEnv):
    """One try at a safe, whose answer is in the task's data."""

    max_turns = 2
    num_broken = 0

    def start(self, task: Task) -> str:
        return "Open the safe."

    @tool
    def answer(self, code: str) -> str:
        """Enter the code."""
        if type(self).num_broken and code == "2":
            type(self).num_broken -= 1
            raise RuntimeError("the safe fell down")
        self.finish(float(code == "3"))
        return f"The display says: code {code} is too {'low' if code < '3' else 'high'}."

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(id=f"{split}-{at}", split=split, seed=at, data={"answers": ["3"]}) for at in range(2)]


@dataclass
class Counting:
    """Answers 1 in its first episode, 2 in the second, and so on, as an endpoint would; remembers what it was told."""

    answers: Sequence[str] = "1234"
    told: list[str] = field(default_factory=list)
    num_asked: int = 0

    def __call__(self, env: Env, seed: int) -> Agent:
        return _Agent(self, env)


class _Agent:
    def __init__(self, policy: Counting, env: Env) -> None:
        self._policy, self._env = policy, env

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        self._tools = tools
        self._policy.told.append("\n".join(message.text for message in observation))

    async def decide(self) -> Decision | None:
        usage = Usage(100, 10, 40)
        if not self._tools:
            return Decision(
                Turn(action=Message("assistant", "The code was wrong, go higher."), usage=usage, latency=HALF_S)
            )
        answer = self._policy.answers[self._policy.num_asked % len(self._policy.answers)]
        self._policy.num_asked += 1
        return Decision(Turn(action=self._env.parse_action(f"answer: {answer}"), usage=usage, latency=HALF_S))

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        pass

    async def end(self) -> None:
        pass


def run(
    out_dir: Path,
    name: str,
    inner: MakeAgent,
    *,
    verify: dict[str, object] | None = None,
    env: Callable[[], Env] = Safe,
    num_tasks: int = 1,
) -> tuple[EvalSummary, Trajectory]:
    """Evaluate a policy of several attempts; return the summary and the first episode."""
    how = Attempts.read(name)
    assert how is not None

    async def main() -> EvalSummary:
        pool = EnvPool(env, 1)
        player = open_attempts(inner, how, verify or {}, out_dir)
        try:
            return await evaluate(
                env().tasks("test")[:num_tasks], pool, player, out_dir=out_dir, suite_or_env="Safe", policy=name,
                seed=5, group_config=CONFIG, price=Price(input=1.0, output=100.0, cached_input=0.5),
            )  # fmt: skip
        finally:
            await pool.close()
            await player.close()

    summary = asyncio.run(main())
    return summary, read_groups(out_dir)[0].trajectories[0]


def said(trajectory: Trajectory) -> str:
    return trajectory.turns[0].action.text


def test_the_oracle_rule_stops_at_the_first_success(tmp_path: Path) -> None:
    policy = Counting()
    summary, episode = run(tmp_path, "retry:counting,attempts=4,by=oracle", policy)
    assert (summary.success, summary.mean_attempts, policy.num_asked) == (1.0, 3.0, 3)
    assert (said(episode), episode.attempt) == ("answer: 3", 2)
    assert [said(other) for other in episode.attempts] == ["answer: 1", "answer: 2"]
    assert [other.success for other in episode.attempts] == [False, False]


def test_the_last_attempt_counts_where_nothing_verifies(tmp_path: Path) -> None:
    summary, episode = run(tmp_path, "retry:counting,attempts=4", Counting())
    assert (summary.success, summary.mean_attempts) == (0.0, 4.0), "the third was right, and nobody knows"
    assert (said(episode), len(episode.attempts)) == ("answer: 4", 3)


def test_what_a_retry_is_told(tmp_path: Path) -> None:
    policy = Counting()
    _, episode = run(tmp_path, "retry:counting,attempts=3", policy)
    first, second, third = policy.told
    assert first == "Open the safe."
    assert second == (
        "Open the safe.\n\nYou have tried this task before.\n"
        "Attempt 1 ended so: you did\nanswer: 1\nand the environment answered\n"
        "The display says: code 1 is too low.\nDo the task now, and avoid what went wrong."
    )
    assert "code 1 is too low" in third and "code 2 is too low" in third
    assert episode.observation[-1].text == third, "the record has what the agent saw"
    for text in policy.told:
        assert "success" not in text and "reward" not in text and "1.0" not in text


def test_tokens_time_and_cost_are_of_all_attempts(tmp_path: Path) -> None:
    summary, _ = run(tmp_path, "retry:counting,attempts=4,by=oracle", Counting())
    (row,) = read_rows(tmp_path)
    assert (row["num_tokens"], row["num_prompt_tokens"], row["num_cached_tokens"]) == (30, 300, 120)
    assert (row["num_attempts"], row["num_turns"]) == (3, 1)
    assert row["seconds"] >= 1.5
    assert row["cost"] == pytest.approx((180 * 1.0 + 120 * 0.5 + 30 * 100.0) / 1e6)
    assert summary.cost == summary.mean_cost == pytest.approx(row["cost"])


def test_a_summary_is_written_by_the_policy_and_counted(tmp_path: Path) -> None:
    policy = Counting()
    _, episode = run(tmp_path, "summary:counting,attempts=2", policy)
    begun, asked, again = policy.told
    assert begun == "Open the safe." and "code 1 is too low" in asked and "Summarise" in asked
    assert "Attempt 1, in your own summary: The code was wrong, go higher." in again
    (first,) = episode.attempts
    assert [turn.kind for turn in first.turns] == ["act", "summary"]
    (row,) = read_rows(tmp_path)
    assert row["num_tokens"] == 30, "two attempts and a summary"


def test_a_scripted_policy_is_told_its_transcript(tmp_path: Path) -> None:
    seen: list[str] = []

    def choose(env: Env, observation: Observation, rng: object) -> Message:
        seen.append(observation[-1].text)
        return env.parse_action("answer: 2")

    run(tmp_path, "summary:mine,attempts=2", scripted(choose))
    assert "in your own summary" in seen[1] and "code 2 is too low" in seen[1]


def test_best_of_n_by_a_scorer_that_is_blind(tmp_path: Path) -> None:
    seen: list[Trajectory] = []

    @scorer("likes_twos")
    def likes_twos(answer: str, references: Sequence[str], trajectory: Trajectory) -> float:
        seen.append(trajectory)
        assert references == () and trajectory.success is None and dict(trajectory.task.data) == {}
        assert not any(turn.reward_parts for turn in trajectory.turns)
        return 0.9 if answer == "2" else 0.1

    summary, episode = run(tmp_path, "best:counting,attempts=3", Counting(), verify={"kind": "likes_twos"})
    assert (said(episode), episode.attempt, len(seen)) == ("answer: 2", 1, 3)
    assert summary.success == 0.0, "success is that of the attempt that was chosen"


def test_a_retry_stops_where_the_scorer_accepts(tmp_path: Path) -> None:
    @scorer("accepts_two")
    def accepts_two(answer: str) -> float:
        return float(answer == "2")

    policy = Counting()
    _, episode = run(tmp_path, "retry:counting,attempts=4", policy, verify={"kind": "accepts_two"})
    assert (said(episode), policy.num_asked) == ("answer: 2", 2)
    assert "no attempt was accepted" in policy.told[1]


def test_the_answer_that_most_attempts_gave(tmp_path: Path) -> None:
    policy = Counting(answers="1332")
    summary, episode = run(tmp_path, "best:counting,attempts=4,by=vote", policy)
    assert (said(episode), summary.success) == ("answer: 3", 1.0)
    assert policy.told == ["Open the safe."] * 4, "attempts to choose from know nothing of each other"


def test_a_failure_of_the_infrastructure_is_no_attempt(tmp_path: Path) -> None:
    class Falls(Safe):
        num_broken = 1

    policy = Counting(answers="12123")
    summary, episode = run(tmp_path, "retry:counting,attempts=3", policy, env=Falls)
    assert (summary.num_failed, episode.num_retries, len(episode.attempts)) == (0, 1, 2)
    assert [said(one) for one in (*episode.attempts, episode)] == ["answer: 1", "answer: 2", "answer: 3"]

    class Half(Safe):
        def start(self, task: Task) -> str:
            if task.seed:
                raise RuntimeError("the safe is gone")
            return super().start(task)

    half, _ = run(tmp_path / "two", "retry:counting,attempts=2", Counting(), env=Half, num_tasks=2)
    assert (half.num_failed, half.num_episodes, half.mean_attempts) == (1, 2, 2.0)


def test_a_scorer_that_fails_is_no_verdict(tmp_path: Path) -> None:
    calls: list[str] = []

    @scorer("busy")
    def busy(answer: str) -> float:
        calls.append(answer)
        if len(calls) == 1:
            raise EngineError("the judge is away")
        return 1.0

    summary, episode = run(tmp_path, "best:counting,attempts=1", Counting(), verify={"kind": "busy"})
    assert (summary.num_failed, episode.num_retries, calls) == (0, 1, ["1", "2"])


@pytest.mark.parametrize(
    ("name", "verify", "said"),
    [
        ("best:oracle", {}, "needs a rule that chooses"),
        ("best:oracle,by=scorer", {}, "by=scorer needs a scorer"),
        ("retry:oracle,by=vote", {}, "by=vote counts independent attempts"),
        ("retry:oracle,by=oracle", {"kind": "judge"}, "is for by=scorer, not for by=oracle"),
        ("best:oracle", {"kind": "f1"}, "uses the true result, which the agent does not know"),
        ("retry:", {}, "names no inner policy"),
        ("retry:best:oracle,by=vote", {}, "attempts of attempts"),
    ],
)
def test_what_cannot_be_is_refused(name: str, verify: dict[str, object], said: str) -> None:
    from agentgym.api.policies import check_policy
    from agentgym.evals.config import EvalConfig

    with pytest.raises(UsageError, match=said):
        check_policy(name, EvalConfig(verify=verify))


def test_wrong_settings_are_named() -> None:
    from agentgym.api.policies import check_policy
    from agentgym.evals.config import EvalConfig

    with pytest.raises(ConfigError, match="attempts"):
        Attempts.read("retry:oracle,attempts=0")
    with pytest.raises(UnknownNameError, match="did you mean 'vote'"):
        Attempts.read("best:oracle,by=votes")
    with pytest.raises(UsageError, match="is for a policy of several attempts"):
        check_policy("oracle", EvalConfig(verify={"kind": "judge"}))
    with pytest.raises(UsageError, match="leave --harness out"):
        check_policy("retry:smollm2", EvalConfig(harness={"name": "openai_loop"}))
    assert Attempts.read("vllm:http://a,http://b?model=m") is None
    found = Attempts.read("best:vllm:http://a,http://b?model=m,attempts=2,by=vote")
    assert found is not None and (found.policy, found.attempts) == ("vllm:http://a,http://b?model=m", 2)
