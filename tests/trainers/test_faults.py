"""A judge that looks for the first wrong turn: flawed successes earn less, and failures are split at it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testkit.checkpoints import drop_checkpoint
from testkit.counting_runs import config, weights
from testkit.fake_openai import FakeOpenAI, completion
from testkit.made_groups import group, trajectory, turn

from agentgym.credit.columns import turn_table
from agentgym.errors import ConfigError
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.rollout.reflection import Reflection
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.engines.openai.http import OpenAIClient
from agentgym.trainers.judges.config import ALL_FAULTS, FAULTS, JudgeConfig
from agentgym.trainers.judges.judge import Judge
from agentgym.trainers.train import train
from agentgym.types import Message, Status, Trajectory, TrajectoryGroup

FAULTY = "judge.grades=faults"


def finder(request: dict[str, Any]) -> Any:
    """A judge for which a turn is wrong if the agent says so, and the last of several if none does."""
    text = request["messages"][1]["content"]
    rows = [json.loads(line) for line in text.split("\n") if line.startswith('{"turn"')]
    said = {str(row["turn"]): row["agent"] for row in rows if "agent" in row}
    scores = {at: float("wrong" not in words) for at, words in said.items()}
    return completion(json.dumps({"reason": "so", "scores": scores}))


def episode(*said: str, success: bool) -> Trajectory:
    turns = [replace(turn([1], [2], index=at), action=Message("assistant", text)) for at, text in enumerate(said)]
    return replace(trajectory(turns), success=success, observation=(Message("user", "Find the mug."),))


def looked_at(server: FakeOpenAI, made: TrajectoryGroup, memory: Path, **settings: Any) -> Any:
    """Return the graded group, the metrics, and the reflection on each member."""
    settings = {"grades": "faults", **settings}
    chosen = JudgeConfig(model=f"openai:{server.url}?model=m&num_tries=1", **settings)

    async def no_wait(seconds: float) -> None:
        pass

    async def run() -> Any:
        judge = Judge(chosen, memory, OpenAIClient(chosen.endpoint, chosen.num_requests, no_wait))
        graded = await judge.graded(made)
        thought = [await judge.reflect(member, 0) for member in made.trajectories]
        await judge.close()
        return graded, judge.take_metrics(), thought

    return asyncio.run(run())


def test_a_flawed_success_earns_half_unless_a_weight_is_given() -> None:
    def pays(**given: Any) -> float:
        return JudgeConfig(model="openai:http://127.0.0.1:1?model=m", **given).pays

    assert [pays(grades=kind) for kind in ("faults", "all_faults", "turns")] == [0.5, 1.0, 1.0]
    assert pays(grades="faults", weight=0.2) == 0.2


def test_flawed_successes_earn_less_and_first_wrong_turns_are_marked(serve: Any, tmp_path: Path) -> None:
    server = serve(finder)
    made = group(
        episode("look", "take", success=True),
        episode("look", "wrong", "take", success=True),
        episode("wrong", "wrong", "take", success=False),
        episode("look", "go", "wrong", success=False),
    )
    graded, counts, thought = looked_at(server, made, tmp_path / "j.jsonl", weight=0.5)
    paid = [[p.value for t in one.turns for p in t.reward_parts if p.name == "judge"] for one in graded.trajectories]
    assert paid == [[], [-0.5], [], []], "a failure is marked, and loses nothing"
    assert [one.success for one in graded.trajectories] == [True, True, False, False]
    marked = [[t.is_faulty for t in one.turns] for one in graded.trajectories]
    assert marked == [[False, False], [False, True, False], [True, False, False], [False, False, True]]
    assert (counts["judge/num_faulty"], counts["judge/num_flawed"]) == (3.0, 1.0)
    assert thought == [Reflection(0), Reflection(0, turn=1), Reflection(0, turn=1), Reflection(0, turn=2)]
    assert len(server.requests) == 4, "a retry and the grade ask the same question once"
    assert FAULTS in server.requests[0]["messages"][0]["content"]
    table = turn_table([graded], ["is_faulty"])
    assert table.is_faulty is not None and table.is_faulty.tolist() == [flag for row in marked for flag in row]


def test_all_wrong_turns_are_marked_and_pay_nothing(serve: Any, tmp_path: Path) -> None:
    server = serve(finder)
    made = group(episode("wrong", "take", "wrong", success=True), episode("look", "wrong", success=False))
    graded, counts, thought = looked_at(server, made, tmp_path / "j.jsonl", grades="all_faults")
    assert [[t.is_faulty for t in m.turns] for m in graded.trajectories] == [[True, False, True], [False, True]]
    assert [m.reward for m in graded.trajectories] == [m.reward for m in made.trajectories]
    assert not any(p.name == "judge" for m in graded.trajectories for t in m.turns for p in t.reward_parts)
    assert thought == [Reflection(0, turn=1), Reflection(0, turn=1)], "the first wrong turn, and at least the second"
    names = ("num_faulty", "num_flawed", "num_wrong_turns")
    assert [counts[f"judge/{name}"] for name in names] == [2.0, 1.0, 3.0]
    assert ALL_FAULTS in server.requests[0]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("agreement", "expected"),
    [("majority", [True, True, False]), ("intersection", [True, False, False]), ("union", [True, True, False])],
)
def test_votes_agree_on_wrong_turns(serve: Any, tmp_path: Path, agreement: str, expected: list[bool]) -> None:
    answers = [{"1": 0.0, "2": 0.0, "3": 1.0}, {"1": 0.4, "2": 0.6, "3": 0.5}]
    server = serve(lambda request: completion(json.dumps({"reason": "", "scores": answers.pop()})))
    made = group(episode("a", "b", "c", success=True))
    graded, _, _ = looked_at(
        server, made, tmp_path / "j.jsonl", grades="all_faults", agreement=agreement, votes=2, num_requests=1
    )
    assert [t.is_faulty for t in graded.trajectories[0].turns] == expected, "half of the votes are a majority"


@pytest.mark.parametrize("grades", ["faults", "all_faults"])
def test_a_judge_that_fails_gives_no_credit(serve: Any, tmp_path: Path, grades: str) -> None:
    server = serve(lambda request: completion(json.dumps({"reason": "", "scores": {"1": 0.0}})))
    graded, counts, _ = looked_at(server, group(episode("a", "b", success=True)), tmp_path / "j.jsonl", grades=grades)
    (member,) = graded.trajectories
    assert member.status is Status.ABORTED and not any(t.is_faulty for t in member.turns)
    assert counts["judge/num_failed"] == 1 and counts["judge/num_faulty"] == 0


def test_votes_are_averaged_before_a_turn_is_wrong(serve: Any, tmp_path: Path) -> None:
    answers = [{"1": 1.0, "2": 0.0}, {"1": 0.0, "2": 0.0}]
    server = serve(lambda request: completion(json.dumps({"reason": "", "scores": answers.pop()})))
    made = group(episode("a", "b", success=True))
    graded, _, _ = looked_at(server, made, tmp_path / "j.jsonl", votes=2, num_requests=1)
    assert [t.is_faulty for t in graded.trajectories[0].turns] == [False, True], "0.5 is not below 0.5"


def test_a_judge_that_fails_gives_no_reward_and_no_turn(serve: Any, tmp_path: Path) -> None:
    server = serve(lambda request: completion("I like it."))
    graded, counts, thought = looked_at(server, group(episode("a", "b", success=True)), tmp_path / "j.jsonl")
    (member,) = graded.trajectories
    assert member.status is Status.ABORTED and member.success is None and counts["judge/num_failed"] == 1
    assert thought == [Reflection(0)], "the retry begins where it would without a judge"


def random_finder(request: dict[str, Any]) -> Any:
    """A judge for which the second turn of every episode is wrong, and the first of short ones."""
    ids = request["response_format"]["json_schema"]["schema"]["properties"]["scores"]["required"]
    wrong = "2" if len(ids) > 2 else "1"
    return completion(json.dumps({"reason": "", "scores": {name: float(name != wrong) for name in ids}}))


@pytest.mark.slow
def test_a_run_splits_failures_retries_from_the_fault_and_resumes(serve: Any, tmp_path: Path) -> None:
    server = serve(random_finder)
    overrides = [
        f"judge.model=openai:{server.url}?model=m&num_tries=1",
        FAULTY,
        "judge.weight=0.5",
        "credit.estimator=dr_grpo",
        'credit.modulators=[{"kind": "right_prefix"}]',
        'strategy.branching={"kind": "retry", "pivot": "judge"}',
        "engine.batch_invariant=true",  # the time of an answer decides which requests the engine computes together
    ]
    made = apply_overrides(config(num_steps=2, checkpoint_every=1), overrides)
    train(made, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    steps = recorded_steps(tmp_path / "run")
    members = [m for s in steps for r in read_records(record_path(tmp_path / "run", s)) for m in r.group.trajectories]
    retries = [m for m in members if m.parent >= 0]
    assert retries and {m.branch_turn for m in retries} == {1}, "from the second turn, which the judge finds wrong"
    assert sum(row["judge/num_faulty"] for row in rows) == sum(any(t.is_faulty for t in m.turns) for m in members)
    flawed = [m for m in members if m.success and any(t.is_faulty for t in m.turns)]
    assert flawed and sum(row["judge/num_flawed"] for row in rows) == len(flawed)
    assert any(row["credit/changed/right_prefix"] > 0 for row in rows)
    expected, num_asked = weights(tmp_path / "run"), len(server.requests)
    drop_checkpoint(tmp_path / "run", 2)
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected and len(server.requests) == num_asked


@pytest.mark.parametrize(
    "overrides",
    [
        ['credit.modulators=[{"kind": "right_prefix"}]'],
        ['strategy.branching={"kind": "retry", "pivot": "judge"}'],
        ['credit.modulators=[{"kind": "right_prefix"}]', "judge.model=openai:http://x/v1", "judge.grades=turns"],
    ],
)
def test_parts_that_need_wrong_turns_are_refused_without_them(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"set judge\.grades=faults"):
        apply_overrides(config(), overrides)


JUDGED = "judge.model=openai:http://x/v1"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["credit.estimator=capo"], r"capo needs a judge .* judge\.grades=all_faults"),
        (["credit.estimator=capo", JUDGED, FAULTY], r"capo needs a judge .* judge\.grades=all_faults"),
        ([JUDGED, "judge.grades=all_faults"], "which nothing reads: add .*the estimator capo"),
        ([JUDGED, "judge.grades=all_faults", "judge.weight=0.5"], "all_faults pays nothing"),
        ([JUDGED, FAULTY, "judge.agreement=union"], r"judge\.agreement is about"),
        ([JUDGED, "judge.wrong_below=0.9"], r"judge\.wrong_below is about wrong turns"),
        (
            [JUDGED, "judge.grades=all_faults", "credit.estimator=capo", 'credit.options={"process_weight": 0}'],
            "process_weight is 0",
        ),
    ],
)
def test_what_capo_cannot_go_with_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_overrides(config(), overrides)


@pytest.mark.slow
def test_a_run_by_capo_resumes(serve: Any, tmp_path: Path) -> None:
    server = serve(random_finder)
    overrides = [
        f"judge.model=openai:{server.url}?model=m&num_tries=1",
        "judge.grades=all_faults",
        "credit.estimator=capo",
    ]
    made = apply_overrides(config(num_steps=2, checkpoint_every=1), overrides)
    train(made, tmp_path / "run")
    steps = recorded_steps(tmp_path / "run")
    groups = [r.group for s in steps for r in read_records(record_path(tmp_path / "run", s))]
    assert any(turn.is_faulty for made in groups for m in made.trajectories for turn in m.turns)
    expected, num_asked = weights(tmp_path / "run"), len(server.requests)
    drop_checkpoint(tmp_path / "run", 2)
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected and len(server.requests) == num_asked
