"""What a run says at its end of the policy after RL beside the one before."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentgym.evals.compare import compare_moments
from agentgym.report.verdict import verdict_of
from agentgym.trainers.reporting import outcome as told


def outcome(run_dir: Path, **known: int) -> list[str]:
    return told.outcome(compare_moments(run_dir), run_dir, known)


def run_folder(path: Path, before: Sequence[tuple[bool, float]], after: Sequence[tuple[bool, float]]) -> Path:
    """A training run with two evaluations; an episode is its success and return."""
    path.mkdir()
    plan = {"recipe": "tiny", "env": {"id": "Guess-v0", "kwargs": {}}, "eval": {"kwargs": {}}}
    (path / "config.json").write_text(json.dumps(plan))
    for moment, episodes in (("before", before), ("after", after)):
        folder = path / "eval" / moment
        folder.mkdir(parents=True)
        rows = [
            {"task_id": f"t{at}", "content_hash": "", "seed": 0, "status": "completed", "success": won, "return": paid}
            for at, (won, paid) in enumerate(episodes)
        ]
        (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "summary.json").write_text("{}")
    return path


def test_a_clear_rise_is_told_with_its_interval(tmp_path: Path) -> None:
    before = [(at < 10, float(at < 10)) for at in range(100)]
    after = [(at < 60, float(at < 60)) for at in range(100)]
    (line,) = outcome(run_folder(tmp_path / "run", before, after))
    assert line.startswith("RL changed success by +50.0 pp (95 %: +") and line.endswith(
        "100 pairs of episodes, p < 0.001)"
    )


def test_an_insignificant_difference_says_how_many_tasks_would_detect_it(tmp_path: Path) -> None:
    before = [(at < 3, float(at < 3)) for at in range(16)]
    after = [(2 <= at < 7, float(2 <= at < 7)) for at in range(16)]
    (line,) = outcome(run_folder(tmp_path / "run", before, after))
    assert "+12.5 pp" in line and "not distinguishable from no change; eval.num_episodes=" in line
    needed = int(line.rpartition("num_episodes=")[2].partition(" ")[0])
    assert 16 < needed < 1000


def test_more_tasks_than_exist_are_not_advised(tmp_path: Path) -> None:
    before = [(at < 3, float(at < 3)) for at in range(16)]
    after = [(2 <= at < 7, float(2 <= at < 7)) for at in range(16)]
    folder = run_folder(tmp_path / "run", before, after)
    (line,) = outcome(folder, **{"Guess-v0": 24})
    assert "and the split has 24: evaluate each more often (eval.repeats)" in line and "eval.num_episodes" not in line
    assert outcome(folder, **{"Guess-v0": 1000}) == outcome(folder)


def test_what_is_said_at_the_end_is_kept(tmp_path: Path) -> None:
    same = [(at % 2 == 0, 0.0) for at in range(16)]
    folder = run_folder(tmp_path / "run", same, same)
    lines, found = outcome(folder), compare_moments(folder)
    told.keep_verdict(folder, lines, found)
    assert verdict_of(folder) == (lines, [])
    (kept,) = json.loads((folder / "verdict.json").read_text())["comparisons"]
    assert (kept["p_value"], kept["num_pairs"]) == (1.0, 16)


def test_equal_success_is_not_distinguishable_from_no_change(tmp_path: Path) -> None:
    same = [(at % 2 == 0, 0.0) for at in range(16)]
    (line,) = outcome(run_folder(tmp_path / "run", same, same))
    assert line.endswith("p = 1): not distinguishable from no change")


@pytest.mark.parametrize(
    ("after", "is_gamed"),
    [
        ((False, 1.4), True),
        ((False, 0.0), False),
        ((True, 1.4), False),
    ],
)
def test_a_return_that_rises_while_success_falls_is_named(
    tmp_path: Path, after: tuple[bool, float], is_gamed: bool
) -> None:
    before = [(at < 30, float(at < 30)) for at in range(100)]
    lines = outcome(run_folder(tmp_path / "run", before, [after] * 100))
    assert any("return rose by 1.1 while success fell" in line for line in lines) == is_gamed
    assert len(lines) == 1 + is_gamed


def test_interval_and_verdict_agree(tmp_path: Path) -> None:
    # once: +10.0 pp (95 %: +0.2 pp to +19.4 pp, p = 0.064): not distinguishable from no change
    for gained in range(12):
        before = [(at >= gained, 0.0) for at in range(60)]
        after = [(at < 58, 0.0) for at in range(60)]
        (line,) = outcome(run_folder(tmp_path / str(gained), before, after))
        low, high = (float(part) for part in re.findall(r"95 %: (\S+) pp to (\S+) pp", line)[0])
        assert ("not distinguishable" in line) == (low <= 0 <= high), line
