"""The part of the page that compares four policies on a suite of three parts, made by public commands."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from lxml import html  # type: ignore[import-untyped]
from testkit.fake_openai import FakeOpenAI, completion
from typer.testing import CliRunner

from agentgym.cli.main import app
from agentgym.envs.gui.chromium import INSTALL, has_chromium
from agentgym.evals.episodes import read_rows
from agentgym.report.charts import as_number

WORLD = '''
from typing import Literal
from agentgym import Message, Task, ToolEnv, register, tool

RIGHT = {"easy": "Łódź", "hard": "Zürich", "trick": "Łódź"}
GOLD = {"easy": "Łódź", "hard": "Zürich", "trick": "Zürich"}


class Trains(ToolEnv):
    """Name the train's city. The oracle does not know the trick."""

    max_turns = 3

    def __init__(self, *, part: str = "easy", **kwargs) -> None:
        super().__init__(**kwargs)
        self.part = part

    def tasks(self, split: str) -> list[Task]:
        types = ("day", "night", "day", "night")
        return [
            Task(id=f"{self.part}-{n}", split=split, seed=n, data={"task_type": kind}) for n, kind in enumerate(types)
        ]

    def start(self, task: Task) -> str:
        self.number = task.seed
        return f"{task.id}: where does the train go?"

    @tool
    def board(self, city: Literal["Łódź", "Zürich", "Kraków", "Ørsta", "Århus", "Málaga", "Győr", "Iași"]) -> str:
        """Board a train."""
        if self.part == "easy" and self.number == 3 and self.turn == 1 and city == "Łódź":
            return "It does not run yet."
        self.finish(1.0 if city == RIGHT[self.part] else 0.0)
        return f"You go to {city}."

    def oracle(self) -> Message:
        return self.parse_action(f"board: {GOLD[self.part]}")


register("Trains-v0", Trains)
'''
PARTS = ("easy", "hard", "trick")
REPEATS = 3


def answer(body: dict[str, Any]) -> Any:
    """Always go to Łódź; before that, half a text on task 0, no city on 1, a malformed call on 2."""
    asked, turns = body["messages"][-1], [one for one in body["messages"] if one["role"] == "assistant"]
    first = next(one["content"] for one in body["messages"] if one["role"] == "user")
    if re.search(r"-2: ", str(first)) and not turns and asked["role"] == "user":
        return completion("Wsiadam.", ("board", '{"city": "Łód'), prompt_tokens=1000, completion_tokens=100)
    is_first = not turns and asked["role"] == "user"
    if re.search(r"-1: ", str(first)) and is_first:
        return completion(None, ("board", '{"city": "Paris"}'), prompt_tokens=700, completion_tokens=50)
    if re.search(r"-0: ", str(first)) and is_first:
        return completion("Jadę do", finish="length", prompt_tokens=300, completion_tokens=7)
    call = ("board", json.dumps({"city": "Łódź"}, ensure_ascii=False))
    return completion(None, call, prompt_tokens=1000, completion_tokens=100)


@dataclass(frozen=True)
class Compared:
    """A folder of suites, its page, and the episodes that the folder holds, by policy."""

    folder: Path
    page: Any
    rows: dict[str, list[dict[str, Any]]]
    results: list[dict[str, Any]]

    def tables(self, css: str) -> list[list[list[str]]]:
        """Return the cells of tables, row by row."""
        found = self.page.xpath(f"//section[@id='models']//table[contains(@class, '{css}')]")
        return [[[cell.text_content().strip() for cell in row] for row in table.iter("tr")] for table in found]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    folder = tmp_path_factory.mktemp("trains")
    (folder / "trains.py").write_text(WORLD)
    parts = "".join(
        f'[[parts]]\nenv = "trains.py:Trains-v0"\nname = "{name}"\nnum_tasks = 4\nkwargs = {{part = "{name}"}}\n'
        for name in PARTS
    )
    (folder / "cities.toml").write_text(f'name = "cities"\nversion = 1\n{parts}')
    server = FakeOpenAI(answer)
    policies = ["oracle", "random", "idle", f"openai:{server.url}?model=lodz"]
    named = [word for policy in policies for word in ("--policy", policy)]
    words = ["eval", str(folder / "cities.toml"), *named, "--repeats", str(REPEATS), "--prices", "10,1,20"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = CliRunner().invoke(app, [*words, "--run-dir", str(folder / "run"), "--json"])
        assert done.exit_code == 0, done.output
        seen = CliRunner().invoke(app, ["view", str(folder / "run"), "--json"])
        assert seen.exit_code == 0, seen.output
    server.close()
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in sorted((folder / "run").glob("**/episodes.jsonl")):
        part = file.parent.name
        slug = file.parent.parent.name
        policy = next(one for one in policies if one == slug or (one.startswith("openai") and slug.endswith("lodz")))
        rows[policy] += [row | {"part": part} for row in read_rows(file.parent)]
    page = html.fromstring(Path(json.loads(seen.stdout)["report"]).read_text(encoding="utf-8"))
    yield Compared(folder / "run", page, dict(rows), json.loads(done.stdout)["results"])


def test_totals_are_those_of_the_command(compared: Compared) -> None:
    (head, *rows), *_ = compared.tables("plain")
    assert [row[head.index("policy")] for row in rows] == [one["policy"] for one in compared.results]
    for row, result in zip(rows, compared.results, strict=True):
        shown = dict(zip(head, row, strict=True))
        assert shown["success"] == f"{result['summary']['success']:.1%}".replace(".0%", "%")
        assert shown["failed"] == f"0 of {12 * REPEATS}"
        played = compared.rows[result["policy"]]
        assert float(shown["turns"]) == pytest.approx(sum(one["num_turns"] for one in played) / len(played), abs=0.051)
    costs = {row[head.index("policy")].partition(":")[0]: row[head.index("cost per episode")] for row in rows}
    assert costs["oracle"] == costs["idle"] and re.search(r"\d", costs["openai"])


COLUMNS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "tokens sampled": ("num_tokens", "mean_tokens", lambda value: as_number(round(value))),
    "tokens read": ("num_prompt_tokens", "mean_prompt_tokens", lambda value: as_number(round(value))),
    "invalid turns": ("num_invalid_turns", "mean_invalid_turns", "{:.2f}".format),
    "tool errors": ("num_tool_errors", "mean_tool_errors", "{:.2f}".format),
    "truncated": ("num_truncated_completions", "mean_truncated_completions", "{:.2f}".format),
    "turns": ("num_turns", "mean_turns", "{:.1f}".format),
}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_is_that_of_the_json_and_of_the_episodes(compared: Compared, column: str) -> None:
    name, mean, shown = COLUMNS[column]
    (head, *rows), *_ = compared.tables("plain")
    in_csv = list(csv.DictReader(io.StringIO((compared.folder / "tasks.csv").read_text())))
    found = set()
    for row, result in zip(rows, compared.results, strict=True):
        value, played = result["summary"][mean], compared.rows[result["policy"]]
        assert row[head.index(column)] == shown(value)
        assert value == pytest.approx(sum(one[name] for one in played) / len(played))
        cells = [float(one[name]) for one in in_csv if one["policy"] == result["policy"]]
        assert sum(cells) / len(cells) == pytest.approx(value)
        found.add(row[head.index(column)])
    assert len(found) > 1, "policies differ, so that a column of another policy would be seen"


def test_the_matrix_has_each_task_and_says_who_alone_solved_it(compared: Compared) -> None:
    ((head, *rows),) = compared.tables("matrix")
    policies = [one["policy"] for one in compared.results]
    assert head == ["part", "task", *policies, "note"]
    assert [(row[0], row[1]) for row in rows] == [(part, f"{part}-{n}") for part in PARTS for n in range(4)]
    for row in rows:
        won = {
            policy: [one["success"] for one in compared.rows[policy] if one["task_id"] == row[1]] for policy in policies
        }
        assert row[2:-1] == [f"{sum(some)} of {REPEATS}" for some in won.values()]
        solved = [policy for policy, some in won.items() if any(some)]
        assert row[-1] == (f"only {solved[0]} solved this" if len(solved) == 1 else "")
    assert any(row[-1].startswith("only openai:") for row in rows), "the trick is known to the endpoint alone"


def test_parts_and_task_types_weigh_tasks_alike(compared: Compared) -> None:
    table = next(one for one in compared.tables("plain") if one[0][0] == "tasks")
    assert [row[0] for row in table[1:]] == [*(f"part {name}" for name in PARTS), "task type day", "task type night"]
    oracle = {row[0]: row[1] for row in table[1:]}
    assert oracle["part easy"].startswith("100% (") and oracle["part trick"].startswith("0% (")
    assert oracle["part hard"].endswith(f"{4 * REPEATS} episodes)")


def test_all_pairs_are_compared_with_a_correction(compared: Compared) -> None:
    ((head, *rows),) = compared.tables("pairs")
    assert len(rows) == 6 and len({(row[0], row[1]) for row in rows}) == 6
    for row in rows:
        found = dict(zip(head, row, strict=True))
        alone: dict[str, dict[Any, list[bool]]] = {policy: defaultdict(list) for policy in (found["A"], found["B"])}
        for policy, tasks in alone.items():
            for one in compared.rows[policy]:
                tasks[one["task_id"], one["seed"]].append(one["success"])
        keys = alone[found["A"]].keys() & alone[found["B"]].keys()
        assert found["pairs"] == str(len(keys)) == str(12 * REPEATS)
        only_a = sum(alone[found["A"]][key] > alone[found["B"]][key] for key in keys)
        assert found["A alone"] == str(only_a)
        assert float(found["p (Holm)"].split()[0]) >= float(found["p"])


def test_histograms_count_every_episode(compared: Compared) -> None:
    names = [svg.get("aria-label") for svg in compared.page.xpath("//section[@id='models']//svg")]
    for result in compared.results:
        policy = result["policy"]
        (turns,) = [name for name in names if name.startswith(f"turns of {policy}: ")]
        counts = {}
        for bar in turns.removeprefix(f"turns of {policy}: ").split("; "):
            value, _, count = bar.rpartition(": ")
            counts[int(value)] = int(count)
        expected: dict[int, int] = defaultdict(int)
        for row in compared.rows[policy]:
            expected[row["num_turns"]] += 1
        assert counts == dict(expected)
    (cost,) = [name for name in names if name.startswith("cost of openai")]
    assert sum(int(bar.rpartition(": ")[2]) for bar in cost.partition("lodz: ")[2].split("; ")) == 12 * REPEATS


def test_the_csv_has_every_episode_and_its_trial(compared: Compared) -> None:
    (link,) = compared.page.xpath("//section[@id='models']//a[@class='csv']")
    rows = list(csv.DictReader(io.StringIO(unquote(link.get("href").partition(",")[2]))))
    assert len(rows) == 4 * 12 * REPEATS
    for policy, played in compared.rows.items():
        mine = [row for row in rows if row["policy"] == policy]
        assert sorted(row["task_id"] for row in mine) == sorted(row["task_id"] for row in played)
        assert {row["trial"] for row in mine} == {"1", "2", "3"}
        assert sum(row["success"] == "True" for row in mine) == sum(row["success"] for row in played)


def test_printed_episodes_show_letters_and_malformed_calls(compared: Compared) -> None:
    (policy,) = [one for one in compared.folder.glob("cities*/*lodz") if one.is_dir()]
    done = CliRunner(charset="utf-8").invoke(app, ["view", str(policy), "--episodes", "4"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert 'board {"city": "Łódź"}' in done.output, done.output
    assert 'Wsiadam. {"city": "Łód' in done.output or '{"city": "Łód' in done.output.replace('{"city": "Łódź"}', "")
    assert "(empty)" not in done.output and "\\u0141" not in done.output


@pytest.mark.gui
@pytest.mark.skipif(not has_chromium(), reason=f"needs Chromium: {INSTALL}")
def test_two_policies_of_one_task_side_by_side(compared: Compared, chromium: Any, tmp_path: Path) -> None:
    errors: list[str] = []
    shown = chromium.new_page(viewport={"width": 1500, "height": 1000})
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.goto((compared.folder / "report.html").as_uri())
    labels = shown.locator("#section option").all_inner_texts()
    assert len(labels) == 12, "a section for each policy and part"
    assert shown.locator(".group h3").first.inner_text().startswith("task easy-0")
    trials = shown.locator(".group").first.locator("button.member > span:first-child").all_inner_texts()
    assert trials == ["trial 1", "trial 2", "trial 3"]
    widths = "() => [...document.querySelectorAll('#models th')].every((th) => th.scrollWidth <= th.clientWidth + 1)"
    assert shown.evaluate(widths)
    select = shown.get_by_label("the same task beside this one")
    others = select.locator("option").all_inner_texts()
    assert len(others) == 4, "the other three policies"
    select.select_option(next(label for label in others if "lodz" in label))
    shown.wait_for_selector("#episode.two .beside .other-turn")
    assert "lodz" in shown.locator(".beside h3").inner_text()
    shown.keyboard.press("n")  # the next trial has its own counterpart
    shown.wait_for_function("() => document.querySelector('.beside')?.textContent.includes('trial 2')")
    assert "trial 2" in shown.locator(".mine h3").first.inner_text()
    shown.locator(".beside button").click()
    shown.wait_for_function("() => document.querySelector('#section').selectedOptions[0].textContent.includes('lodz')")
    shown.close()
    assert errors == []
