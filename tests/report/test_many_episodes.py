"""A page of thousands of episodes in Chromium: it opens at once, draws rows as needed, and links lead to turns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agentgym.envs.gui.chromium import INSTALL, has_chromium
from agentgym.evals.episodes import EpisodeFiles, write_json
from agentgym.evals.runner import summarise
from agentgym.report import write_report
from agentgym.types import Message, Segment, Status, Task, Trajectory, TrajectoryGroup, Turn

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = [pytest.mark.gui, pytest.mark.skipif(not has_chromium(), reason=f"needs Chromium: {INSTALL}")]
NUM_EPISODES = 5_000


def episode(at: int) -> Trajectory:
    """An episode of two to nine turns of some words each."""
    num_turns = 2 + at * 7 % 8
    turns = tuple(
        Turn(
            index=n,
            action=Message("assistant", f"search: the mayor of town {at * 31 + n}"),
            replies=(Message("tool", f"Town {at * 31 + n} has {at % 97} houses and a mayor. " * 4),),
            state_key=f"town {at} {n}",
        )
        for n in range(num_turns)
    )
    task = Task(id=f"test-{at}", split="test", seed=at)
    status = Status.COMPLETED if at % 3 else Status.TRUNCATED_TURNS
    return Trajectory(
        task=task, env_id="Towns-v0", status=status, segments=(Segment(turns),), seed=2**62 + at, success=at % 3 == 1
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "towns"
    files = EpisodeFiles(folder, resume=False)
    for at in range(NUM_EPISODES):
        made = episode(at)
        files.add(TrajectoryGroup(ordinal=at, task=made.task, trajectories=(made,)))
    files.finish()
    summary = summarise([*files.rows.values()], suite_or_env="Towns-v0", policy="p", run_dir=folder)
    write_json(folder / "summary.json", asdict(summary))
    return write_report(folder)


@pytest.fixture
def page(report: Path, chromium: Any) -> Iterator[Any]:
    """The page, opened; an error in it fails the test."""

    errors: list[str] = []
    shown = chromium.new_page(viewport={"width": 1300, "height": 900})
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.goto(report.as_uri())
    shown.wait_for_selector(".turn")
    yield shown
    shown.close()
    assert errors == []


def test_all_episodes_are_in_a_small_file(report: Path, page: Any) -> None:
    assert report.stat().st_size < 30_000_000
    assert f"({NUM_EPISODES} of {NUM_EPISODES} episodes)" in page.locator("#section option").first.inner_text()
    assert page.locator("button.member").count() < 500, "rows that nobody has scrolled to are not drawn"
    page.locator("#viewer").scroll_into_view_if_needed()
    page.locator("#groups").evaluate("list => list.scrollTo(0, list.scrollHeight)")
    page.wait_for_function("() => document.querySelectorAll('button.member').length > 120")
    assert 120 < page.locator("button.member").count() < 1000


def test_filters_order_and_search_reach_every_episode(page: Any) -> None:
    page.select_option("#sort", "long")
    expect(page.locator("button.member").first).to_contain_text("9 t")
    page.select_option("#sort", "")
    page.locator("#outcome button", has_text="no success").click()
    expect(page.locator("#episode h3")).to_contain_text("test-1 ")
    page.locator("#outcome button", has_text="no success").click()
    page.fill("#search", f"town {4_999 * 31 + 1}")
    expect(page.locator("button.member")).to_have_count(1)
    expect(page.locator("#episode h3")).to_contain_text("test-4999")
    assert page.locator("#section option").first.inner_text().endswith("(1 match)")


def test_a_link_leads_to_a_turn(report: Path, page: Any) -> None:
    page.keyboard.press("n")
    expect(page.locator("#episode h3")).to_contain_text("test-1 ")
    page.keyboard.press("j")
    address = page.evaluate("location.hash")
    assert address.endswith(f"/{2**62 + 1}/2")
    page.goto("about:blank")
    page.goto(report.as_uri() + address.replace(f"{2**62 + 1}/2", f"{2**62 + 4_321}/3"))
    expect(page.locator("#episode h3")).to_contain_text("test-4321 ")
    assert page.locator(".turn.here .about > b").inner_text() == "turn 3"
    assert page.locator("button.member.open").inner_text().startswith("test-4321")
    page.locator("#episode details.raw summary").click()
    assert json.loads(page.locator("#episode details.raw pre").inner_text())["task"] == "test-4321"
    page.evaluate(f"location.hash = '#evaluation/{2**62 + 7}/1'")
    expect(page.locator("#episode h3")).to_contain_text("test-7 ")


def test_a_link_that_leads_nowhere_opens_the_page(report: Path, page: Any) -> None:
    page.goto("about:blank")
    page.goto(report.as_uri() + "#evaluation/123/4")
    page.wait_for_selector(".turn")
    page.goto("about:blank")
    page.goto(report.as_uri() + "#nonsense")
    page.wait_for_selector(".turn")
    assert page.locator("#episode h3").inner_text().startswith("test-0")
