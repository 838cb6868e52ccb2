"""Scorers: what they give, how they are put together, and what happens when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym.errors import ConfigError, EngineError, UnknownNameError, UsageError
from agentgym.evals.scoring import Grader, Scored, Scoring
from agentgym.scoring.answer import final_answer
from agentgym.scoring.component import SCORERS, scorer
from agentgym.scoring.numbers import is_near, read_number
from agentgym.types import Message, RewardPart, RewardRole, Segment, Status, Task, ToolCall, Trajectory, Turn


def episode(
    said: str, answers: Sequence[str] = ("Paris",), *, success: bool = True, parts: Sequence[RewardPart] = ()
) -> Trajectory:
    call = ToolCall("answer", {"text": said})
    turn = Turn(index=0, action=Message("assistant", f"answer: {said}", (call,)), reward_parts=tuple(parts))
    task = Task(id="q", split="test", seed=0, data={"answers": list(answers)})
    segments = (Segment((turn,)),)
    return Trajectory(task=task, env_id="x", status=Status.COMPLETED, segments=segments, seed=0, success=success)


def scored(trajectory: Trajectory, tmp_path: Path, **values: Any) -> Scored:
    return asyncio.run(Grader(Scoring.read(values), tmp_path).scored(trajectory))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42.0), ("it is 42.", 42.0), ("-3", -3.0), ("\u22123", -3.0), ("1,250", 1250.0),
        ("1,250,000.5", 1250000.5),
        ("1, 2, 3", 3.0), ("1,2", 2.0), ("3/4", 0.75), ("12 %", 0.12), ("50%", 0.5), ("1e-3", 1e-3), (".5", 0.5),
        ("5/0", None), ("none", None), ("", None), ("step 2 gives 7", 7.0), ("v1.2.3 is 4", 4.0), ("$1,000", 1000.0),
        ("x2", None), ("-1/-2" , -2.0), ("9" * 400, None),
    ],
)  # fmt: skip
def test_the_last_number_of_a_text(text: str, number: float | None) -> None:
    found = read_number(text)
    assert found == number if number is None else found == pytest.approx(number)


def test_nearness() -> None:
    assert is_near(100.5, 100, tolerance=0.01)
    assert not is_near(101.5, 100, tolerance=0.01)
    assert is_near(0.004, 0.0, absolute=0.01)
    assert not is_near(float("nan"), 1.0, tolerance=1.0)


def test_what_an_episode_ended_with() -> None:
    assert final_answer(episode("Lyon")) == "Lyon"
    words = Turn(index=1, action=Message("assistant", "It is Paris."))
    two = Turn(index=1, action=Message("assistant", "book: a, b", (ToolCall("book", {"x": "a", "y": "b"}),), answer=""))
    task = Task(id="q", split="test", seed=0)

    def ended(*turns: Turn) -> str:
        made = Trajectory(task=task, env_id="x", status=Status.COMPLETED, segments=(Segment(turns),), seed=0)
        return final_answer(made)

    assert ended(words) == "It is Paris."
    assert ended(two) == ""
    assert ended() == ""


def test_builtin_scorers(tmp_path: Path) -> None:
    assert scored(episode("the paris"), tmp_path, kind="em").score == 1.0
    assert scored(episode("Paris, France"), tmp_path, kind="f1").score == pytest.approx(2 / 3)
    assert scored(episode("It is Paris."), tmp_path, kind="cover_em").success
    assert scored(episode("about 3.1", ["3.14159"]), tmp_path, kind="numeric", tolerance=0.02).success
    assert not scored(episode("about 3.1", ["3.14159"]), tmp_path, kind="numeric").success
    assert not scored(episode("no idea", ["3"]), tmp_path, kind="numeric").success
    assert scored(episode("ANSWER: B", ["b"]), tmp_path, kind="regex", pattern=r"answer:\s*(\w)").success
    assert not scored(
        episode("ANSWER: B", ["b"]), tmp_path, kind="regex", pattern=r"answer:\s*(\w)", ignore_case=False
    ).success
    assert scored(episode("done", []), tmp_path, kind="regex", pattern="done|finished").success
    assert scored(episode("x", success=True), tmp_path, kind="outcome").success
    assert not scored(episode("x", success=False), tmp_path, kind="outcome").success
    parts = [RewardPart("tests", 0.4), RewardPart("cost", -0.1, RewardRole.COST), RewardPart("bonus", 0.2)]
    assert scored(episode("x", parts=parts), tmp_path, kind="partial", success_at=0.6).score == pytest.approx(0.6)
    assert scored(episode("x", parts=parts), tmp_path, kind="partial", success_at=0.6).success
    for name in ("em", "f1", "cover_em"):
        with pytest.raises(UsageError, match=f"scorer {name}: the task has no answers"):
            scored(episode("Paris", []), tmp_path, kind=name)
    with pytest.raises(UsageError, match="contain no number: Paris"):
        scored(episode("3"), tmp_path, kind="numeric")


def test_code_is_scored_by_tests_in_a_sandbox(tmp_path: Path) -> None:
    head = "from solution import add\n\n"
    tests = head + "".join(f"def test_{a}():\n    assert add({a}, {a}) == {2 * a}\n\n" for a in (0, 1))
    task = Task(id="c", split="test", seed=0, data={"tests": tests})

    def by_tests(said: str, **options: Any) -> float:
        made = replace(episode(said), task=task)
        return scored(made, tmp_path, kind="code", sandbox="process", **options).score

    right = "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
    assert by_tests(right) == 1.0
    assert by_tests("def add(a, b):\n    return 0\n") == 0.0
    assert by_tests("def add(a, b):\n    return 0\n", share=True) == 0.5
    assert by_tests("no code at all", share=True) == 0.0
    with pytest.raises(UsageError, match=r"task q has no tests under data\['tests'\]"):
        scored(episode("x"), tmp_path, kind="code", sandbox="process")


def test_scorers_are_put_together_by_weight(tmp_path: Path) -> None:
    both = [{"kind": "em"}, {"kind": "regex", "pattern": "x", "weight": 3}, {"kind": "em", "weight": 2}]
    found = scored(episode("paris"), tmp_path, scorers=both, success_at=0.5)
    assert (found.score, found.success) == (0.5, True)
    assert found.by_scorer == {"em": 1.0, "regex": 0.0, "em-2": 1.0}
    thirds = [{"kind": "em", "weight": 0.1}, {"kind": "f1", "weight": 0.2}, {"kind": "cover_em", "weight": 0.7}]
    assert scored(episode("paris"), tmp_path, scorers=thirds).success  # whatever a sum of such weights rounds to


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "f2"}, "did you mean 'f1'"),
        ({"success_at": 0.5}, "scorer.kind=NAME"),
        ({"kind": "em", "success_at": 0}, "success_at must be above 0"),
        ({"kind": "em", "tolerance": 1}, "em has no settings; got tolerance"),
        ({"kind": "em", "weight": 0}, "weight is a number above 0, got 0"),
        ({"kind": "numeric", "tolerance": -1}, "at least 0"),
        ({"kind": "regex"}, "pattern is missing"),
        ({"kind": "regex", "pattern": "("}, "no regular expression"),
        ({"kind": "judge"}, "model is missing"),
        ({"kind": "judge", "model": "gpt"}, "model is 'gpt'; name an endpoint, openai:URL"),
        ({"kind": "numeric", "tolerence": 1}, r"unknown key 'scorer\.tolerence'; did you mean 'scorer\.tolerance'"),
        ({"scorers": [{"weight": 1}]}, "under the key 'kind'"),
        ({"scorers": "em"}, "scorer.scorers"),
    ],
)
def test_wrong_settings_are_refused_with_their_place(values: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        Scoring.read(values)


def test_a_scorer_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from agentgym.plugins import Options\n"
        "from agentgym.scoring.component import scorer\n\n\n"
        "@dataclass(frozen=True, slots=True, kw_only=True)\n"
        "class Short(Options):\n    kind: str = 'short'\n    most: int = 5\n\n\n"
        "@scorer('short')\n"
        "async def short(answer: str, options: Short) -> float:\n"
        "    return len(answer) <= options.most\n"
    )
    assert scored(episode("Paris"), tmp_path, kind=f"{file}:short").success
    assert not scored(episode("Paris"), tmp_path, kind=f"{file}:short", most=4).success


def test_what_is_no_score_and_what_breaks_is_said(tmp_path: Path) -> None:
    @scorer("twice")
    def twice(answer: str) -> float:
        return 2.0

    @scorer("half")
    def half(answer: str) -> Any:
        return np.float32(0.5)

    @scorer("nan")
    def nan(answer: str) -> float:
        return float("nan")

    @scorer("breaks")
    def breaks(task: Task) -> float:
        return float(task.data["missing"])

    try:
        with pytest.raises(ConfigError, match=r"twice returned 2\.0; a score is a number from 0 to 1"):
            scored(episode("x"), tmp_path, kind="twice")
        assert scored(episode("x"), tmp_path, kind="half").score == 0.5
        with pytest.raises(ConfigError, match="nan returned nan"):
            scored(episode("x"), tmp_path, kind="nan")
        with pytest.raises(ConfigError, match=r"breaks failed on task q: KeyError\('missing'\)"):
            scored(episode("x"), tmp_path, kind="breaks")
    finally:
        for name in ("twice", "half", "nan", "breaks"):
            SCORERS._components.pop(name)


def test_what_scorers_keep_is_closed_and_their_failures_are_nobodys(tmp_path: Path) -> None:
    class Client:
        is_closed = False

        async def close(self) -> None:
            self.is_closed = True

    @scorer("remote")
    async def remote(answer: str, kept: dict[str, Any]) -> float:
        kept.setdefault("client", client)
        if answer == "down":
            raise EngineError("the endpoint is down")
        return 1.0

    client = Client()

    async def main() -> list[Scored | Exception]:
        grader = Grader(Scoring.read({"kind": "remote"}), tmp_path)
        found: list[Scored | Exception] = [*await grader.scored_all([episode("up"), episode("down")])]
        await grader.close()
        return found

    try:
        first, second = asyncio.run(main())
    finally:
        SCORERS._components.pop("remote")
    assert isinstance(first, Scored)
    assert isinstance(second, EngineError)
    assert client.is_closed


def test_every_scorer_is_described() -> None:
    ours = [one for one in SCORERS.values() if one.module.startswith("agentgym.")]
    assert len(ours) >= 8
    assert [one.name for one in ours if not (one.call.__doc__ or "").strip()] == []
