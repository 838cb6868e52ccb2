"""Advice of an error leads somewhere: the command that it names does not end in the same advice."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ADVICE = re.compile(r"agentgym (eval|train|compare|view) ((?:--?)?[^;,.)]+)")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a cut record": lambda folder: halved(folder / "episodes.jsonl.gz"),
    "no record": lambda folder: (folder / "episodes.jsonl.gz").write_bytes(b""),
    "a record that is none": lambda folder: (folder / "episodes.jsonl.gz").write_bytes(b"hello"),
    "a row that is none": lambda folder: (folder / "episodes.jsonl").write_text("{nope\n{}\n"),
    "rows that are no text": lambda folder: (folder / "episodes.jsonl").write_bytes(b"\xff\xfe\n{}\n"),
    "a plan that is none": lambda folder: (folder / "config.json").write_text("{"),
    "limits that are none": lambda folder: (folder / "effort.json").write_text("{"),
}


@pytest.mark.parametrize("is_finished", [True, False], ids=["finished", "unfinished"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_advice_about_a_damaged_evaluation_leads_on(
    damage: Callable[[Path], object], is_finished: bool, run: Any, guess: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    played = ("eval", guess, "--policy", "oracle", "--episodes", "2", "--run-dir", str(folder))
    assert run(*played).code == 0
    damage(folder)
    if not is_finished:
        (folder / "summary.json").unlink()
    for command in (
        ("eval", "--resume", str(folder)),
        ("compare", str(folder), str(folder)),
        ("view", str(folder)),
        ("eval", "--rescore", str(folder), "scorer.kind=outcome"),
    ):
        follow(run, command, [])


def follow(run: Any, command: tuple[str, ...], tried: list[tuple[str, ...]]) -> None:
    """Run a command, and then what its error advises, which was not tried before."""
    said = run(*command)
    assert said.code in (0, 1, 2) and "Traceback" not in said.err
    if said.code == 2:
        assert said.err.startswith("error: ") and said.err.count("\n") == 1
        tried = [*tried, command]
        for found in ADVICE.finditer(said.err):
            advised = tuple(shlex.split(found.group().removeprefix("agentgym ")))
            assert advised not in tried, said.err
            follow(run, advised, tried)
