"""agentgym credit: the table, the JSON, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testkit.recorded_runs import write_run

from agentgym.credit.compose import CreditConfig
from agentgym.rollout.record import read_records, record_path, recorded_steps
from agentgym.rollout.token_scores import TurnScores, scores_path, write_scores

Command = Callable[..., Any]

FIELDS = {
    "name", "num_turns", "credited_share", "zero_advantage_share", "left_out_share", "flat_group_share",
    "uncredited_group_share", "phantom_share", "anchor_share", "anchor_size", "advantage_std", "correlation",
    "sign_agreement", "largest_gap",
}  # fmt: skip


@pytest.fixture
def run_folder(tmp_path: Path) -> str:
    """The folder of a recorded run, relative to where commands are called."""
    write_run(tmp_path / "rooms", CreditConfig(estimator="gigpo", gamma=0.9))
    return "rooms"


def test_json(run: Command, run_folder: str) -> None:
    value = run("credit", run_folder, "--estimator", "gigpo,grpo", "--json").json
    assert set(value) == {
        "run_dir", "steps", "num_groups", "num_turns", "recorded", "estimators", "notes", "report",
    }  # fmt: skip
    assert (value["run_dir"], value["steps"], value["num_groups"]) == ("rooms", 4, 12)
    assert [row["name"] for row in value["estimators"]] == ["gigpo", "grpo"]
    assert all(set(row) == FIELDS for row in (value["recorded"], *value["estimators"]))
    gigpo, grpo = value["estimators"]
    assert (gigpo["largest_gap"], gigpo["sign_agreement"]) == (0, 1)
    assert gigpo | {"name": "recorded"} == value["recorded"]
    assert -1 <= grpo["correlation"] < 1
    assert grpo["anchor_share"] is None
    assert value["report"] == "rooms/credit.html"
    assert "<title>rooms: credit" in Path("rooms/credit.html").read_text()


def test_the_table(run: Command, run_folder: str) -> None:
    shown = run("credit", run_folder)
    assert shown.code == 0
    names = [line.split()[0] for line in shown.out.splitlines()[2:6]]
    assert names == ["recorded", "gigpo", "hgpo", "grpo"]
    assert shown.out.endswith("report: rooms/credit.html\n")


def test_steps_settings_and_the_pages_place(run: Command, run_folder: str) -> None:
    value = run(
        "credit", run_folder, "--estimator", "hgpo,rloo", "--steps", "2:3", "--set", "credit.gamma=1.0",
        "--set", "credit.options.history=1", "--out", "other.html", "--json",
    ).json  # fmt: skip
    assert (value["steps"], value["num_groups"], value["report"]) == (2, 6, "other.html")
    assert "rloo does not read credit.gamma" in value["notes"]
    page = Path("other.html").read_text()
    assert "gamma 1, options hgpo(history=1)" in page
    assert "<dd>2 to 3</dd>" in page
    assert not Path("rooms/credit.html").exists()
    assert run("credit", run_folder, "--steps", "4", "--json").json["steps"] == 1
    assert run("credit", run_folder, "--steps", ":3", "--json").json["steps"] == 3
    assert run("credit", run_folder, "--steps", "2:", "--json").json["steps"] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no folder 'nowhere'"),
        (["."], "has no recorded rollouts"),
        (["rooms", "--estimator", "gigop"], "did you mean 'gigpo'?"),
        (["rooms", "--estimator", "gigpo,turn_gae"], "turn_gae needs the column value, which this run's records"),
        (["rooms", "--set", "credit.gama=1"], "did you mean 'credit.gamma'?"),
        (["rooms", "--set", "credit.gamma=2"], "gamma must be between 0 and 1"),
        (["rooms", "--steps", "9:12"], "no step of 9:12 is recorded; rooms has steps 1 to 4"),
        (["rooms", "--steps", "0:2"], "counted from 1"),
        (["rooms", "--steps", "two"], "--steps takes FIRST:LAST"),
        (["rooms", "--out", "nowhere/page.html"], "--out takes a file in an existing folder"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_refused(run: Command, run_folder: str, arguments: list[str], said: str, as_json: bool) -> None:
    assert said in run("credit", *arguments, *(["--json"] if as_json else [])).assert_one_line_error()
    assert not Path("rooms/credit.html").exists()


@pytest.mark.parametrize("content", [b"", b"not gzip", b"\x1f\x8b\x08 cut"])
def test_a_damaged_record(run: Command, run_folder: str, content: bytes) -> None:
    record_path(Path(run_folder), 2).write_bytes(content)
    assert "step-000002.jsonl.gz" in run("credit", run_folder, "--json").assert_one_line_error()
    assert not Path("rooms/credit.html").exists()
    assert run("credit", run_folder, "--steps", "1:2").code == 0  # those that are whole


def test_a_damaged_configuration(run: Command, run_folder: str) -> None:
    Path(run_folder, "config.json").write_text("{")
    assert "config.json is not JSON" in run("credit", run_folder).assert_one_line_error()


def test_entropies_come_from_the_scores_of_trained_tokens(run: Command, run_folder: str) -> None:
    empg = ("credit", run_folder, "--estimator", "grpo", "--set", 'credit.modulators=[{"kind": "empg"}]', "--json")
    assert "empg needs the column entropy, which this run's records do not hold" in run(*empg).assert_one_line_error()
    num_groups = 0
    for step in recorded_steps(Path(run_folder)):
        groups = [record.group for record in read_records(record_path(Path(run_folder), step))]
        num_groups += len(groups) - 1
        scores = [
            TurnScores(
                ordinal=group.ordinal,
                member=member,
                turn=turn.index,
                logprobs=(-1.0,) * len(turn.completion.token_ids),
                entropies=(0.1 + turn.index % 2,) * len(turn.completion.token_ids),
            )
            for group in groups[1:]  # the first one was not trained
            for member, trajectory in enumerate(group.trajectories)
            for turn in trajectory.turns
        ]
        write_scores(scores_path(Path(run_folder), step), scores)
    value = run(*empg).json
    assert value["num_groups"] == num_groups and value["estimators"][0]["advantage_std"] > 0
    assert any("groups that were not trained are left out" in note for note in value["notes"])
