"""Pages in a window of 400 pixels, in Chromium: nothing is wider than the window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.envs.gui.chromium import INSTALL, has_chromium
from agentgym.report import write_report
from agentgym.report.credit_page import write_credit_report
from agentgym.rollout.recredit import plan_recredit, read_credit_settings, read_held_columns, select_steps

pytestmark = [pytest.mark.gui, pytest.mark.skipif(not has_chromium(), reason=f"needs Chromium: {INSTALL}")]


def width(chromium: Any, page: Path, window: int) -> int:
    """Return the width in pixels of a page in a window."""
    shown = chromium.new_page(viewport={"width": window, "height": 900})
    shown.goto(page.as_uri())
    found = int(shown.evaluate("document.scrollingElement.scrollWidth"))
    shown.close()
    return found


def test_the_report_of_a_run(run_dir: Path, chromium: Any) -> None:
    assert width(chromium, write_report(run_dir), 400) == 400


def test_the_report_of_an_evaluation(run_dir: Path, chromium: Any) -> None:
    assert width(chromium, write_report(run_dir / "eval" / "after"), 400) == 400


def test_the_report_of_suites(tmp_path: Path, make_eval: Callable[..., None], chromium: Any) -> None:
    for suite in ("a-suite-with-a-long-name.first-200", "another"):
        folder = tmp_path / suite / "openai-http-localhost-8000-v1-model-name"
        make_eval(folder, num_won=3)
        (folder / "suite.json").write_text("{}")
    assert width(chromium, write_report(tmp_path), 400) == 400


def test_the_page_on_credit(run_dir: Path, tmp_path: Path, chromium: Any) -> None:
    plan = plan_recredit(["grpo"], read_credit_settings(run_dir), [], read_held_columns(run_dir))
    page = tmp_path / "credit.html"
    write_credit_report(run_dir, plan, select_steps(run_dir, None, None), page)
    assert width(chromium, page, 400) == 400
