"""Suites: what their files say, what their hash stands for, what runs and what cannot."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from agentgym.env.tool_env import ToolEnv
from agentgym.errors import CorruptDataError, UnknownNameError, UsageError
from agentgym.evals.compare import compare, open_evaluations
from agentgym.evals.config import EvalConfig
from agentgym.evals.episodes import read_rows
from agentgym.evals.play import Play
from agentgym.evals.policies import named_policy, scripted
from agentgym.evals.suite_runner import SuiteResult, run_suite
from agentgym.evals.suites import (
    Suite,
    SuitePart,
    load_suite,
    open_suite,
    suite_facts,
    suite_names,
)
from agentgym.registry import register
from agentgym.settings import checked
from agentgym.tool import tool
from agentgym.types import Message, Task

oracle = named_policy("oracle")

SHARED = Path(os.environ.get("AGENTGYM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


class Guess(ToolEnv):
    """Guess a number."""

    max_turns = 3
    is_broken = False

    def __init__(self, *, highest: int = 3, data_dir: str = "", **kwargs: Any) -> None:
        self.highest, self.data_dir = highest, data_dir
        super().__init__(**kwargs)

    def start(self, task: Task) -> str:
        if type(self).is_broken and task.id != "test-0":
            raise RuntimeError("the world is broken")
        self.secret = int(self.np_random.integers(1, self.highest + 1))
        return f"Guess my number between 1 and {self.highest}."

    @tool
    def guess(self, number: int) -> str:
        """Guess the number."""
        if number == self.secret:
            self.finish(1.0)
        return "Correct." if number == self.secret else "Wrong."

    def oracle(self) -> Message:
        return self.parse_action(f"guess: {self.secret}")


class Unaided(Guess):
    """Guess without a gold policy."""

    def oracle(self) -> Message:
        return ToolEnv.oracle(self)


always_two = scripted(lambda env, observation, rng: env.parse_action("guess: 2"))


register("SuiteGuess-v0", Guess)
register("SuiteUnaided-v0", Unaided)
register("SuiteMissing-v0", "no_such_module:Env", extra="alfworld", requires=("no_such_module",))


@pytest.fixture(autouse=True)
def whole_world() -> Iterator[None]:
    yield
    Guess.is_broken = False


def suite(*parts: SuitePart, **changes: Any) -> Suite:
    chosen = parts or (SuitePart(env="SuiteGuess-v0", num_tasks=4),)
    return Suite(**{"name": "guesses", "version": 1, "parts": chosen, **changes})


def run(chosen: Suite, out_dir: Path, *, policy: str = "oracle", resume: bool = False) -> SuiteResult:
    agent = oracle if policy == "oracle" else always_two
    return asyncio.run(
        run_suite(chosen, Play(config=EvalConfig(policy=policy), make_agent=agent, out_dir=out_dir, resume=resume))
    )


# --------------------------------------------------------------------------------------------------- those that come


@pytest.mark.parametrize("name", suite_names())
def test_a_suite_that_comes_with_us_is_complete(name: str) -> None:
    made = load_suite(name)
    assert made.name == name and made.version >= 1
    assert made.summary and made.licence and made.source
    facts = suite_facts(made)
    if not facts["available"]:
        assert facts["reason"]
        assert facts["mend"], "what does not come with the package has a way to get it"
    elif "generated" in made.source:
        assert made.content_hash, "generated tasks are the same everywhere"


def test_what_is_generated_is_what_it_was() -> None:
    opened = [open_suite(load_suite(name)) for name in suite_names() if "generated" in load_suite(name).source]
    assert len(opened) >= 7
    assert all(one.content_hash == one.suite.content_hash for one in opened)


@pytest.mark.skipif(not (SHARED / "code").is_dir(), reason="needs code/ in AGENTGYM_SHARED_DATA")
def test_suites_of_given_data_open_where_the_data_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_SHARED_DATA", str(SHARED))
    assert len(open_suite(load_suite("code-humaneval")).parts[0].tasks) == 164
    assert len(open_suite(load_suite("code-exercism")).parts[0].tasks) == 30


# -------------------------------------------------------------------------------------------------------------- files


def test_a_users_suite_is_a_short_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nversion = 2\n[[parts]]\nenv = "SuiteGuess-v0"\nnum_tasks = 3\nkwargs = {highest = 5}\n'
    )
    made = load_suite(str(path))
    assert (made.label, made.parts[0].kwargs) == ("mine@2", {"highest": 5})
    assert [task.id for task in open_suite(made).parts[0].tasks] == ["test-0", "test-1", "test-2"]
    as_json = tmp_path / "mine.json"
    as_json.write_text(json.dumps(asdict(made)))
    assert load_suite(str(as_json)) == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "is not a suite"),
        ('name = "x"\nversion = 1\n', "parts: Field required"),
        ('name = "x"\nversion = 1\nparts = []\n', "it needs parts"),
        ('name = "x"\nversion = 1\n[[parts]]\nenv = "a"\ntasks = 3\n', r"parts\.0\.tasks"),
        ('name = "X y"\nversion = 1\n[[parts]]\nenv = "a"\n', "a name has small letters"),
        ('name = "x"\nversion = 1\n[[parts]]\nenv = "a"\n[[parts]]\nenv = "a"\n', "parts with different names"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(CorruptDataError, match=said):
        load_suite(str(path))


def test_a_suite_that_is_not_there_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'household-valid'"):
        load_suite("household-vald")
    with pytest.raises(UsageError, match=r"unknown suite file 'nowhere\.toml'"):
        load_suite("nowhere.toml")


# --------------------------------------------------------------------------------------------------------------- hash


def test_the_hash_is_of_what_a_policy_meets() -> None:
    content = open_suite(suite()).content_hash
    part = SuitePart(env="SuiteGuess-v0", num_tasks=4)
    same = [suite(name="others", version=3, summary="x"), suite(replace(part, name="p"))]
    same.append(suite(SuitePart(env="SuiteGuess-v0", ids=tuple(f"test-{n}" for n in range(4)))))
    assert {open_suite(one).content_hash for one in same} == {content}
    changed = [
        suite(replace(part, num_tasks=5)),
        suite(replace(part, split="valid")),
        suite(replace(part, kwargs={"highest": 4})),
        suite(part, seed=1),
        suite(part, num_samples=2),
        suite(part, step_timeout_s=1.0),
        suite(part).shortened(2),
    ]
    hashes = [open_suite(one).content_hash for one in changed]
    assert len({content, *hashes}) == len(changed) + 1


def test_a_hash_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="guesses@1 has changed"):
        open_suite(suite(content_hash="0" * 32))


def test_the_place_of_data_is_not_part_of_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"env": "SuiteGuess-v0", "num_tasks": 4, "paths": {"data_dir": {"variable": "GUESSES", "below": "a"}}}
    made = checked(Suite, {"name": "guesses", "version": 1, "parts": [values]})
    monkeypatch.delenv("GUESSES", raising=False)
    assert suite_facts(made)["reason"] == "data_dir: GUESSES is not set; set it to the folder with a"
    monkeypatch.setenv("GUESSES", str(tmp_path))
    assert suite_facts(made)["reason"].startswith(f"data_dir: GUESSES is {tmp_path}, and there is no a;")
    (tmp_path / "a").mkdir()
    assert open_suite(made).content_hash == open_suite(suite()).content_hash
    env = made.parts[0].make_env()
    assert isinstance(env, Guess) and env.data_dir == str(tmp_path / "a")


def test_missing_tasks_are_named() -> None:
    with pytest.raises(UsageError, match="no task 'test-4000' in split 'test'"):
        open_suite(suite(SuitePart(env="SuiteGuess-v0", ids=("test-4000",))))
    with pytest.raises(UsageError, match="has 1000 tasks in split 'test', not 4000"):
        open_suite(suite(SuitePart(env="SuiteGuess-v0", num_tasks=4000)))


# ------------------------------------------------------------------------------------------------------------- running


def test_parts_are_one_result(tmp_path: Path) -> None:
    parts = [SuitePart(env="SuiteGuess-v0", name=f"up-to-{n}", num_tasks=n, kwargs={"highest": n}) for n in (3, 6)]
    result = run(suite(*parts, num_samples=2), tmp_path, policy="two")
    assert result.outcome == "done" and result.summary is not None
    assert result.summary.num_episodes == 18
    assert [part.num_episodes for part in result.parts] == [6, 12]
    assert result.summary.success == pytest.approx(sum(p.success * p.num_episodes for p in result.parts) / 18)
    assert len(read_rows(tmp_path / "up-to-6")) == 12
    assert len({row["seed"] for row in read_rows(tmp_path / "up-to-6")}) == 12


@pytest.mark.parametrize(
    ("part", "reason", "mend"),
    [
        (SuitePart(env="SuiteMissing-v0"), "needs the extra 'alfworld'", "pip install -e '.[alfworld]'"),
        (SuitePart(env="SuiteUnaided-v0", num_tasks=2), "has no oracle", ""),
        (SuitePart(env="SuiteNowhere-v0"), "unknown environment", ""),
    ],
)
def test_what_cannot_run_has_a_reason_and_no_score(part: SuitePart, reason: str, mend: str, tmp_path: Path) -> None:
    result = run(suite(part), tmp_path / "out")
    assert (result.outcome, result.summary, result.parts) == ("cannot_run", None, ())
    assert reason in result.reason
    assert result.mend == mend
    assert not (tmp_path / "out").exists()


def test_too_many_lost_episodes_stop_a_suite_without_a_score(tmp_path: Path) -> None:
    Guess.is_broken = True
    result = run(replace(suite(), mend="install the world"), tmp_path)
    assert (result.outcome, result.summary) == ("stopped", None)
    assert "the world is broken" in result.reason
    assert result.mend != "install the world"  # which says what a suite needs before it begins
    Guess.is_broken = False
    again = run(replace(suite(), mend="install the world"), tmp_path, resume=True)
    assert again.summary is not None and (again.summary.success, again.summary.num_failed) == (1.0, 0)


def test_a_suite_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = run(suite(), tmp_path)
    rows = tmp_path / "episodes.jsonl"
    kept = rows.read_text().splitlines(keepends=True)[:2]
    rows.write_text("".join(kept))
    assert run(suite(), tmp_path, resume=True) == whole
    assert rows.read_text().splitlines(keepends=True)[:2] == kept


# ------------------------------------------------------------------------------------------------------------- compare


def test_evaluations_of_one_suite_are_compared_pair_by_pair(tmp_path: Path) -> None:
    many = suite(SuitePart(env="SuiteGuess-v0", num_tasks=30))
    run(many, tmp_path / "a", policy="two")
    run(many, tmp_path / "b")
    (a,), (b,) = (open_evaluations(tmp_path / name).values() for name in ("a", "b"))
    found = compare(a, b)
    won = sum(row["success"] for row in read_rows(tmp_path / "a"))
    assert (found.num_pairs, found.num_left_out) == (30, 0)
    assert (found.success_a, found.success_b) == (won / 30, 1.0)
    assert (found.num_only_a, found.num_only_b) == (0, 30 - won)
    assert found.p_value < 0.001 and found.is_distinguishable
    assert found.difference_low > 0.4 and found.difference_low <= found.difference <= found.difference_high
    back = compare(b, a)
    assert back.difference == pytest.approx(-found.difference)
    assert back.p_value == found.p_value


def test_pairs_that_are_no_evidence_are_left_out_and_counted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(suite(), tmp_path / name)
    rows = [row | ({"status": "env_error", "success": None, "return": None} if at == 1 else {})
            for at, row in enumerate(read_rows(tmp_path / "b"))]  # fmt: skip
    (tmp_path / "b" / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (a,), (b,) = (open_evaluations(tmp_path / name).values() for name in ("a", "b"))
    found = compare(a, b)
    assert (found.num_pairs, found.num_left_out, found.p_value) == (3, 1, 1.0)


def test_different_contents_are_not_compared(tmp_path: Path) -> None:
    run(suite(), tmp_path / "a")
    run(suite(seed=1), tmp_path / "b")
    (a,), (b,) = (open_evaluations(tmp_path / name).values() for name in ("a", "b"))
    with pytest.raises(UsageError, match="0 of them with the same task and seed"):
        compare(a, b)


def test_a_folder_that_is_no_evaluation_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        open_evaluations(tmp_path / "nowhere")
    with pytest.raises(CorruptDataError, match="not a finished evaluation"):
        open_evaluations(tmp_path)
