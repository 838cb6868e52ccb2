"""The journal of a run: what it holds, and that changes between two beginnings are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgym import __version__
from agentgym.errors import CorruptDataError, RunStoppedError
from agentgym.rollout import journal


def test_a_line_for_each_beginning(tmp_path: Path) -> None:
    assert journal.read(tmp_path) == []
    assert journal.note(tmp_path, tasks="ab") == []
    assert journal.note(tmp_path, tasks="ab") == []
    assert journal.note(tmp_path, tasks="cd") == ["tasks: ab, cd"]
    lines = journal.read(tmp_path)
    assert [line["tasks"] for line in lines] == ["ab", "ab", "cd"]
    assert (lines[0]["agentgym"], lines[0]["packages"]["numpy"][:1].isdigit()) == (__version__, True)


def test_other_versions_are_told(tmp_path: Path) -> None:
    old = journal.made_with(policy={"name": "m", "weights": "aa"})
    old["packages"]["numpy"] = "0.1"
    old["at"] = "long ago"
    (tmp_path / journal.JOURNAL).write_text(json.dumps(old) + "\n")
    numpy = journal.made_with()["packages"]["numpy"]
    found = journal.note(tmp_path, policy={"name": "m", "weights": "bb"})
    assert found == [f"packages.numpy: 0.1, {numpy}", "policy.weights: aa, bb"]


def test_files_of_ones_own_are_known_by_their_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("a = 1")
    config = {"env": {"id": "mine.py:Mine-v0"}, "credit": {"estimator": "gigpo", "shapers": [{"kind": "mine.py:up"}]}}
    before = journal.own_files(config)
    assert list(before) == ["mine.py"] and journal.note(tmp_path, own_files=before) == []
    Path("mine.py").write_text("a = 2")
    after = journal.own_files(config)
    assert journal.note(tmp_path, own_files=after) == [f"own_files.mine.py: {before['mine.py']}, {after['mine.py']}"]


def test_a_model_is_known_by_its_files(tmp_path: Path) -> None:
    for name, text in (("model.safetensors", "w"), ("config.json", "{}"), ("tokenizer.json", "t")):
        (tmp_path / name).write_text(text)
    before = journal.model_facts(tmp_path)
    assert (len(before["weights"]), before["template"]) == (32, "")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    after = journal.model_facts(tmp_path)
    assert after["template"] != "" and {**after, "template": ""} == before
    (tmp_path / "model.safetensors").write_text("v")
    assert journal.model_facts(tmp_path)["weights"] != before["weights"]


def test_large_files_are_known_by_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_LARGE", 100)
    monkeypatch.setattr(journal, "_END", 10)
    path = tmp_path / "model.safetensors"

    def digest(text: str) -> str:
        path.write_text(text)
        return journal.model_facts(tmp_path)["weights"]

    same = digest("a" * 200)
    assert digest("a" * 90 + "b" * 20 + "a" * 90) == same, "the middle is not read"
    assert len({same, digest("a" * 199 + "b"), digest("b" + "a" * 199), digest("a" * 201)}) == 4


def test_a_broken_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / journal.JOURNAL).write_text("[1]\n")
    with pytest.raises(CorruptDataError, match=r"journal\.jsonl is not a journal"):
        journal.note(tmp_path)


def test_the_error_that_ends_a_run(tmp_path: Path) -> None:
    journal.note(tmp_path, tasks="ab")
    assert journal.last_stop(tmp_path) == {}
    journal.note_stop(tmp_path, RunStoppedError("34 of 64\nepisodes failed"), phase="rl", step=7)
    stop = journal.last_stop(tmp_path)
    assert (stop["stopped"], stop["phase"], stop["step"]) == ("34 of 64 episodes failed", "rl", 7)
    assert journal.note(tmp_path, tasks="cd") == ["tasks: ab, cd"], "compared with the beginning, not with the error"
    assert journal.last_stop(tmp_path) == {} and len(journal.read(tmp_path)) == 2
    journal.note_stop(tmp_path, KeyError("goal"))
    assert journal.last_stop(tmp_path)["stopped"] == "KeyError: 'goal'"
