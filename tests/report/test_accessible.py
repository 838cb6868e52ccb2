"""Pages checked by axe in Chromium: wide and narrow, light and dark."""

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


def violations(chromium: Any, path: Path, width: int) -> list[str]:
    """Return axe's complaints in both colour schemes, each with the first element it is about."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme="dark")
    page.goto(path.as_uri())
    page.wait_for_timeout(300)
    page.evaluate("() => { for (const one of document.querySelectorAll('details')) one.open = true; }")
    found = []
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
        response: dict[str, Any] = axe.Axe().run(page).response
        found += [
            f"{scheme}: {one['id']}: {one['nodes'][0]['html'][:120]} ({one['nodes'][0]['failureSummary']})"
            for one in response["violations"]
        ]
    page.close()
    return found


@pytest.mark.parametrize("width", [1300, 400])
def test_the_report_of_a_run(run_dir: Path, chromium: Any, width: int) -> None:
    assert violations(chromium, write_report(run_dir), width) == []


def test_other_pages(run_dir: Path, tmp_path: Path, make_eval: Callable[..., None], chromium: Any) -> None:
    make_eval(tmp_path / "suites" / "mugs" / "oracle", num_won=3)
    (tmp_path / "suites" / "mugs" / "oracle" / "suite.json").write_text("{}")
    assert violations(chromium, write_report(tmp_path / "suites"), 1300) == []
    beside = write_report(run_dir / "eval" / "after", tmp_path / "beside.html", beside=run_dir)
    assert violations(chromium, beside, 1300) == []
    plan = plan_recredit(["grpo"], read_credit_settings(run_dir), [], read_held_columns(run_dir))
    page = tmp_path / "credit.html"
    write_credit_report(run_dir, plan, select_steps(run_dir, None, None), page)
    assert violations(chromium, page, 1300) == []
