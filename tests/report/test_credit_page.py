"""The page of re-credited rollouts: what it holds, that it adds up, and that nothing in a run can break out of it."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testkit.recorded_runs import recorded_batches, write_run

from agentgym.credit.compose import CreditConfig, assign_credit
from agentgym.errors import UsageError
from agentgym.report import credit_groups as module
from agentgym.report import page
from agentgym.report.credit_page import CreditReport, write_credit_report
from agentgym.rollout import journal
from agentgym.rollout.record import GroupRecord, read_records, record_path, write_records
from agentgym.rollout.recredit import plan_recredit, read_credit_settings, select_steps
from agentgym.types import Message, Segment, Task

HOSTILE = "</script><img src=x onerror=alert(1)><b>&amp;"


def report_of(
    folder: Path, estimators: Sequence[str] = ("gigpo", "hgpo", "grpo"), overrides: Sequence[str] = ()
) -> CreditReport:
    plan = plan_recredit(estimators, read_credit_settings(folder), overrides)
    return write_credit_report(folder, plan, select_steps(folder, None, None), folder / "credit.html")


def data_of(report: CreditReport) -> Any:
    found = re.search(
        r'<script type="application/json" id="credit">(.*?)</script>',
        report.path.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert found is not None
    return json.loads(found.group(1))


def test_what_the_page_holds(tmp_path: Path) -> None:
    folder = tmp_path / "rooms-001"
    batches = write_run(folder, CreditConfig(estimator="gigpo", gamma=0.9))
    report = report_of(folder)
    page = report.path.read_text(encoding="utf-8")
    for text in ("rooms-001", "re-credited rollouts", "gigpo, gamma 0.9", "the same as recorded", "phantom turns"):
        assert text in page
    assert "12 of 12 groups" in page
    num_turns = sum(len(t.turns) for batch in batches for of in batch.groups for t in of.valid)
    assert (report.num_groups, report.num_turns, report.notes) == (12, num_turns, ())
    assert [summary.name for summary in report.estimators] == ["gigpo", "hgpo", "grpo"]
    assert report.recorded is not None and report.recorded.correlation == pytest.approx(1)
    data = data_of(report)
    assert [column["name"] for column in data["columns"]] == ["recorded", "gigpo", "hgpo", "grpo"]
    assert [column["compares_states"] for column in data["columns"]] == [True, True, True, False]
    differences = [group["difference"] for group in data["groups"]]
    assert differences == sorted(differences, reverse=True)
    assert any(group["is_lost"] for group in data["groups"])


def test_turns_have_their_credit_and_their_anchors(tmp_path: Path) -> None:
    config = CreditConfig(estimator="gigpo", gamma=0.9)
    (batch,) = write_run(tmp_path, config, num_steps=1)
    data = data_of(report_of(tmp_path, ("gigpo", "grpo")))
    ((first, *_), *_) = assign_credit(batch.groups, config)
    group = next(g for g in data["groups"] if len(g["members"]) == 5)
    expected, member = batch.groups[0].trajectories[0], group["members"][0]
    assert (member["success"], member["status"], member["opening"]) == (
        expected.success, expected.status.value, "Go somewhere.",
    )  # fmt: skip
    assert len(first) == len(member["turns"])
    for turn, shown, credit in zip(expected.turns, member["turns"], first, strict=True):
        assert (shown["action"], shown["reply"]) == (turn.action.text, turn.replies[0].text)
        recorded, gigpo, grpo = shown["credit"]
        assert recorded == gigpo
        assert gigpo["a"] == pytest.approx(credit.advantage, rel=1e-3)
        assert gigpo["g"] == pytest.approx(credit.return_to_go, rel=1e-3)
        assert gigpo["k"] == credit.anchor_group
        assert "k" not in grpo
    assert group["members"][4] == {
        "status": "env_error", "success": None, "return": None, "opening": "", "turns": [],
    }  # fmt: skip


def test_phantoms_gates_and_shaped_rewards(tmp_path: Path) -> None:
    write_run(tmp_path, CreditConfig(estimator="grpo"))
    gate = 'credit.shapers=[{"kind": "g_ra"}]'
    report = report_of(tmp_path, ("grpo",), [gate])
    assert report.recorded is not None
    assert report.recorded.phantom_share > 0.1
    assert report.estimators[0].phantom_share == 0
    data = data_of(report)
    shut = [
        turn["credit"]
        for group in data["groups"]
        if group["is_lost"]
        for member in group["members"]
        for turn in member["turns"]
    ]
    assert all(gated["a"] == 0 and gated["shut"] for _, gated in shut)
    assert any(recorded["a"] != 0 for recorded, _ in shut)
    assert any(gated.get("r") == 0 for _, gated in shut)


def test_it_is_closed_in_itself_and_nothing_breaks_out(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=y onerror=alert(2)>"
    write_run(folder, CreditConfig())
    records = read_records(record_path(folder, 0))
    episode = records[0].group.trajectories[0]
    said = replace(
        episode.turns[0],
        action=Message("assistant", HOSTILE),
        replies=(Message("user", HOSTILE),),
        state_key=HOSTILE,
        reward_parts=tuple(replace(part, name=HOSTILE) for part in episode.turns[0].reward_parts),
    )
    hostile = replace(episode, segments=(Segment((said, *episode.turns[1:])),), observation=(Message("user", HOSTILE),))
    task = Task(id=HOSTILE, split="train", seed=0)
    group = replace(records[0].group, task=task, trajectories=(hostile, *records[0].group.trajectories[1:]))
    write_records(record_path(folder, 0), [replace(records[0], group=group, dropped=HOSTILE), *records[1:]])
    report = report_of(folder)
    page = report.path.read_text(encoding="utf-8")
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert not re.search(r"https?://|<link|<script[^>]+src|<iframe|@import|url\(", page)
    assert "default-src 'none'" in page
    assert "innerHTML" not in page and "insertAdjacentHTML" not in page
    shown = next(g for g in data_of(report)["groups"] if g["task"] == HOSTILE)
    turn = shown["members"][0]["turns"][0]
    assert (turn["action"], turn["reply"], shown["members"][0]["opening"]) == (HOSTILE,) * 3
    assert not list(folder.glob("*.partial"))


def test_the_page_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, CreditConfig())
    monkeypatch.setattr(module, "MAX_GROUPS", 5)
    report = report_of(tmp_path)
    assert "5 of 12 groups" in report.path.read_text(encoding="utf-8")
    few = [group["difference"] for group in data_of(report)["groups"]]
    monkeypatch.setattr(module, "MAX_GROUPS", 40)
    assert few == [group["difference"] for group in data_of(report_of(tmp_path))["groups"]][:5]
    monkeypatch.setattr(module, "MAX_CHARACTERS", 20_000)
    report = report_of(tmp_path)
    assert 0 < len(data_of(report)["groups"]) < 12
    assert report.path.stat().st_size < 80_000
    monkeypatch.setattr(module, "LONGEST_TEXT", 4)
    assert "characters more]" in data_of(report_of(tmp_path))["groups"][0]["members"][0]["opening"]


def test_a_record_that_its_settings_do_not_give_is_noted(tmp_path: Path) -> None:
    write_run(tmp_path, CreditConfig())
    (tmp_path / "config.json").write_text('{"credit": {"estimator": "gigpo", "gamma": 0.5}}')
    report = report_of(tmp_path)
    (note,) = report.notes
    assert note.startswith("the run's own settings do not give the recorded credit, as its settings or the library")
    assert note in report.path.read_text(encoding="utf-8").replace("&#39;", "'")


def test_steps_that_a_memory_lacks_are_noted(tmp_path: Path) -> None:
    write_run(tmp_path, CreditConfig())
    record_path(tmp_path, 1).unlink()
    assert report_of(tmp_path, ("gigpo",)).notes == ()
    assert report_of(tmp_path, ("gigpo", "spo")).notes == (
        "1 earlier step is not recorded and so not in the memory of spo",
    )


def test_numbers_that_are_not_finite_do_not_break_the_page(tmp_path: Path) -> None:
    write_run(tmp_path, CreditConfig())
    records = read_records(record_path(tmp_path, 0))
    odd = tuple(replace(turn, advantage=float("nan"), return_to_go=float("inf")) for turn in records[0].credit[0])
    broken = replace(records[0], credit=(odd, *records[0].credit[1:]))
    write_records(record_path(tmp_path, 0), [broken, *records[1:]])
    report = report_of(tmp_path, ("gigpo",))
    assert "NaN" not in report.path.read_text(encoding="utf-8").partition('id="credit">')[2].partition("</script>")[0]
    assert report.recorded is not None
    assert report.recorded.num_turns == report.num_turns - len(odd)


def test_a_run_without_recorded_credit(tmp_path: Path) -> None:
    for batch in recorded_batches(CreditConfig(), num_steps=2):
        write_records(record_path(tmp_path, batch.step), [GroupRecord(group=group) for group in batch.groups])
    report = report_of(tmp_path, ("gigpo",))
    assert report.recorded is None
    assert report.estimators[0].correlation is None
    assert "the run recorded no credit: there is nothing to compare with" in report.notes
    assert data_of(report)["groups"][0]["members"][0]["turns"][0]["credit"][0] is None


def test_a_page_that_cannot_be_written_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (batch,) = recorded_batches(CreditConfig(), num_steps=1)
    write_records(record_path(tmp_path, 0), [GroupRecord(group=group) for group in batch.groups])

    def refuse(path: Path, text: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(page, "replace_text", refuse)
    with pytest.raises(UsageError, match=r"credit.html cannot be written \(Read-only file system\).*--out FILE"):
        report_of(tmp_path)


def test_a_run_without_turns(tmp_path: Path) -> None:
    (batch,) = recorded_batches(CreditConfig(), num_steps=1)
    group = replace(batch.groups[0], trajectories=batch.groups[0].trajectories[4:] * 2)
    write_records(record_path(tmp_path, 0), [GroupRecord(group=group, credit=((), ()), dropped="too_few_valid")])
    report = report_of(tmp_path, ("spo", "rloo"))
    assert (report.num_groups, report.num_turns) == (1, 0)
    assert "No turn is recorded in these steps." in report.path.read_text(encoding="utf-8")


def test_a_component_file_that_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path, CreditConfig())
    (tmp_path / "config.json").write_text('{"credit": {"estimator": "gigpo", "gamma": 0.5}}')
    for name in ("mine.py", "same.py"):
        Path(name).write_text("scale = 1")
    journal.note(tmp_path, own_files=journal.own_files({"credit": ["mine.py:mine", "same.py:same"]}))
    Path("mine.py").write_text("scale = 2")
    (note,) = report_of(tmp_path).notes
    assert note.startswith("the run's own settings do not give the recorded credit, as mine.py changed since")
