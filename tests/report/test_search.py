"""Search in the report, in Chromium: what is found, where, and the same task in the other run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgym.envs.gui.chromium import INSTALL, has_chromium
from agentgym.report import write_report

pytestmark = [pytest.mark.gui, pytest.mark.skipif(not has_chromium(), reason=f"needs Chromium: {INSTALL}")]


@pytest.fixture
def page(run_dir: Path, tmp_path: Path, chromium: Any) -> Iterator[Any]:
    """The report of a run beside another, opened; an error in it fails the test."""
    other = tmp_path / "other" / "mugs-002"
    shutil.copytree(run_dir, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"seed": 8}))
    path = write_report(run_dir, tmp_path / "both.html", beside=other)
    errors: list[str] = []
    shown = chromium.new_page(viewport={"width": 1300, "height": 900})
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.goto(path.as_uri())
    yield shown
    shown.close()
    assert errors == []


def search(page: Any, text: str) -> list[str]:
    """Type into the search field; return the sections as they are listed."""
    page.fill("#search", text)
    page.wait_for_function("text => document.querySelector('#search').dataset.shown === text", arg=text.lower())
    return list(page.locator("#section option").all_inner_texts())


def test_a_page_of_two_runs_opens_with_its_own(page: Any) -> None:
    assert page.locator("#section option:checked").inner_text() == "step 12 (6 of 6 groups)"


def test_search_shows_matches_and_counts_them_everywhere(page: Any) -> None:
    num_all = page.locator("button.member").count()
    sections = search(page, "PICK UP")
    assert page.locator("button.member").count() == num_all > 0, "case does not matter, and every reply says it"
    assert all("match" in section for section in sections)
    search(page, "no such words")
    assert "No episode is left" in page.locator("#groups").inner_text()
    assert page.locator("#episode").inner_text() == ""
    sections = search(page, "")
    assert page.locator("button.member").count() == num_all and not any("match" in section for section in sections)


def test_search_goes_where_the_first_match_is(page: Any) -> None:
    sections = search(page, "test-1")
    assert "evaluation" in page.locator("#section option:checked").inner_text()
    assert sections[0].endswith("(0 matches)") and any(section.endswith("(1 match)") for section in sections)
    before, after = page.evaluate("""() => {
        const turn = () => document.querySelector(".turn.here .about > b").innerText;
        const before = turn();
        const pressed = new KeyboardEvent("keydown", {key: "j", bubbles: true});
        document.querySelector("#search").dispatchEvent(pressed);
        return [before, turn()];
    }""")
    assert after == before, "keys in the field are text"


def test_the_same_task_in_the_other_run(page: Any) -> None:
    search(page, "test-1")
    here = page.locator("#section option:checked").inner_text()
    select = page.get_by_label("the same task beside this one")
    select.select_option(next(one for one in select.locator("option").all_inner_texts() if "mugs-002" in one))
    page.locator(".beside button").click()
    there = page.locator("#section option:checked").inner_text()
    assert there == f"mugs-002: {here}"
    assert page.locator("#episode h3").inner_text().startswith("test-1")
