"""Terminals of 80 columns: whole words and names in tables, pages, and bars that keep their numbers."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from testkit.made_groups import trajectory, turn

from agentgym.cli.compare import print_comparisons
from agentgym.cli.grid import Grid
from agentgym.cli.output import Output
from agentgym.evals.compare import Comparison
from agentgym.progress import SuccessCount, progress_bars
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.run import Run
from agentgym.types import Status

Command = Callable[..., Any]

FRAMES = str.maketrans(dict.fromkeys("│╭╮╰╯─", " "))


def shown(grid: Grid, width: int) -> str:
    console = Console(file=StringIO(), width=width, highlight=False)
    console.print(grid)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("list", "--suites"),
        ("list", "--strategies"),
        ("list", "--credit"),
        ("describe", "agentgym/Household-v0"),
        ("describe", "GUESS"),
    ],
    ids=" ".join,
)
def test_no_line_is_too_long_and_no_word_is_split(
    run: Command, guess: str, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    called = [guess if argument == "GUESS" else argument for argument in arguments]
    texts = {}
    for width in (80, 1000):
        monkeypatch.setenv("COLUMNS", str(width))
        texts[width] = run(*called).out
    lines = texts[80].partition("\nfor the others: ")[0].partition("\n\nagentbench-db: ")[0].splitlines()
    assert max(map(len, lines)) <= 80  # below are commands, which the terminal may break and a mouse copies whole
    words = {width: set(text.translate(FRAMES).replace(",", " ").split()) for width, text in texts.items()}
    assert words[80] <= words[1000] | {"tasks", "licence", "content", "runs", "here"}


def test_every_name_of_a_component_is_listed_whole(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = run("list", "--credit").out.split()
    assert {row["name"] for row in run("list", "--credit", "--json").json} <= set(words)


def test_a_table_becomes_paragraphs_where_it_does_not_fit() -> None:
    grid = Grid("suite", "what it is", "tasks", "runs here", prose="what it is")
    grid.add_row("household-valid@1", "Errands in generated rooms", "200", "[green]yes[/]")
    grid.add_row("games@1", "", "", "no")
    assert shown(grid, 70).splitlines()[0].split() == ["suite", "what", "it", "is", "tasks", "runs", "here"]
    assert shown(grid, 40) == (
        "household-valid@1\n"
        "  Errands in generated rooms            \n"
        "  tasks 200, runs here yes              \n"
        "games@1\n"
        "  runs here no                          \n"
    )


def test_comparisons_of_suites_with_short_names_split_no_word() -> None:
    out = Output(as_json=False)
    out.console = Console(file=StringIO(), width=80, highlight=False)
    found = Comparison(
        suite_or_env="mine@1", content_hash="", policy_a="random", policy_b="idle", num_pairs=6, num_left_out=3,
        success_a=0.667, success_b=0.0, difference=-0.667, difference_low=-0.99, difference_high=-0.01, num_only_a=4,
        num_only_b=0, p_value=0.125, detectable=0.7, tasks_needed=7, return_difference=-0.667,
        return_difference_low=-1.0, return_difference_high=-0.333,
    )  # fmt: skip
    print_comparisons(out, [found])
    text = " ".join(out.console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "95 % interval -99.0 pp to -1.0 pp" in text and text.endswith("pairs 6, 3 left out")


def test_an_optional_column_goes_first() -> None:
    grid = Grid("name", "status", "released code", optional=["released code"])
    grid.add_row("gigpo", "verified", "langfengq/verl-agent@d501621")
    assert "verl-agent" in shown(grid, 80)
    narrow = shown(grid, 30)
    assert "verl-agent" not in narrow and "verified" in narrow and "released" not in narrow


def test_plain_words_describe_a_tool(run: Command) -> None:
    out = run("describe", "agentgym/Household-v0").out
    assert "receptacle (string): Name and number of a receptacle" in out
    assert "num_receptacles: int = 8 " in out
    assert "furniture to search" in out
    for mark in ("``", ":data:", '"type"', "'int'", "{"):
        assert mark not in out


@pytest.mark.parametrize(("width", "is_loss_shown"), [(80, False), (140, True)])
def test_a_bar_keeps_count_time_and_success(width: int, is_loss_shown: bool) -> None:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    bars = progress_bars(console)
    facts = ["success 0.125", "loss -0.0123", "entropy 0.9", "num_turns 11", "logprob_gap_max 0.0001"]
    bars.add_task("evaluation step-000150", total=200, completed=50, facts=facts)
    console.print(bars.get_renderable())
    line = console.file.getvalue()  # type: ignore[attr-defined]
    assert line.count("\n") == 1 and len(line.rstrip("\n")) <= width
    for part in ("evaluation step-000150", "━" * 4, "50/200", "-:--:--", "success 0.125"):
        assert part in line
    assert ("loss -0.0123" in line) is is_loss_shown
    assert "…" not in line


def test_a_bar_counts_failures_apart() -> None:
    count = SuccessCount()
    assert count.add(replace(trajectory([turn([1], [2])]), success=True)) == ("success 1/1",)
    assert count.add(trajectory([turn([1], [2])])) == ("success 1/2",)
    assert count.add(trajectory([turn([1], [2])], status=Status.ENV_ERROR)) == ("success 1/2", "1 failed")


def test_a_long_list_goes_through_the_pager_of_a_terminal(tmp_path: Path) -> None:
    paged = tmp_path / "paged"
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"PAGER": f"cat > {paged}", "TERM": "xterm"}
        os.execv(sys.executable, [sys.executable, "-m", "agentgym", "list", "--credit"])
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:  # how Linux says that the other side is closed
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "gigpo" in paged.read_text()


def test_a_run_shows_what_its_tokenizer_is_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    narrow = partial(Console, file=screen, force_terminal=True, width=80)
    monkeypatch.setattr("agentgym.trainers.run.tokenizer.VisibleConsole", narrow)
    Run(apply_overrides(load_recipe("household-smoke"), ["model.num_text_episodes=3"]), tmp_path)
    assert "texts of episodes" in screen.getvalue() and "3/3" in screen.getvalue()
    assert "tokenizer of 0.0 MB" in screen.getvalue()
