"""The page of a run that goes on: what it is told, and that its curves and numbers follow the run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from testkit.local_servers import FOREIGN

from agentgym.envs.gui.chromium import FLAGS, INSTALL, find_chromium, has_chromium
from agentgym.errors import RunStoppedError, UsageError
from agentgym.report import write_report
from agentgym.report.now import now_of, version_of
from agentgym.report.run_folder import open_run_folder
from agentgym.rollout import journal
from agentgym.rollout.pulse import PULSE_FILE, Beat
from agentgym.rollout.record import append_json_line

fastapi_testclient = pytest.importorskip("fastapi.testclient")


def names_of(run_dir: Path) -> dict[str, str]:
    return {name: value for name, value, _ in now_of(open_run_folder(run_dir))}


def test_what_the_run_does_now(run_dir: Path) -> None:
    before = version_of(run_dir)
    row = {
        "phase": "rl", "step": 13, "success": 0.25, "status/completed": 6, "status/env_error": 2, "num_retries": 3,
        "num_dropped_groups": 1, "trained_tokens": 5, "invalid_share": 0.6, "groups_ahead": 2, "tokens_per_s": 1234.0,
        "time/rollout_s": 2.0, "time/train_s": 3.5,
    }  # fmt: skip
    append_json_line(run_dir / "metrics.jsonl", row)
    assert version_of(run_dir) != before
    found = {name: (value, is_bad) for name, value, is_bad in now_of(open_run_folder(run_dir))}
    assert found.pop("last row")[0].endswith("s ago")
    assert found == {
        "RL step": ("13", False),
        "success": ("25%", False),
        "failed episodes": ("2 of 8", True),
        "played again": ("3", False),
        "groups that taught nothing": ("1", False),
        "invalid turns": ("60%", True),
        "sampled tokens per second": ("1.2k", False),
        "groups ahead": ("2", False),
        "seconds of rollouts, training": ("2, 3.5", False),
    }


def test_a_run_that_stopped(run_dir: Path, tmp_path: Path) -> None:
    before = version_of(run_dir)
    journal.note_stop(run_dir, RunStoppedError("34 of 64 episodes failed"), phase="rl", step=12)
    assert version_of(run_dir) != before
    assert names_of(run_dir)["state"] == "stopped after rl step 12: 34 of 64 episodes failed"
    early = tmp_path / "early"  # before its first number
    journal.note_stop(early, RunStoppedError("no tokenizer"), phase="sft", step=0)
    assert names_of(early) == {"state": "stopped after sft step 0: no tokenizer"}
    assert "stopped after sft step 0: no tokenizer" in write_report(early).read_text(encoding="utf-8")


def test_a_run_that_has_not_measured_anything(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    assert names_of(tmp_path) == {"state": "nothing measured yet"}
    append_json_line(tmp_path / "metrics.jsonl", {"phase": "sft", "step": 7, "loss": 1.5})
    assert names_of(tmp_path)["fine-tuning step"] == "7"


def test_what_happens_between_two_rows(run_dir: Path) -> None:
    beat = Beat(
        at_s=time.time(), doing="playing", done=40, playing=16, limit=16, waiting=24,
        failures={"env_error": 2}, retries=5, last_failure="the browser is gone",
        engine={"running": 9, "queued": 7, "servers": 2, "ready": 1, "fault": "no answer"},
    )  # fmt: skip
    (run_dir / PULSE_FILE).write_text(json.dumps(asdict(beat)))
    found = {name: (value, is_bad) for name, value, is_bad in now_of(open_run_folder(run_dir))}
    assert found["now"][0].startswith("playing, ") and not found["now"][1]
    assert {name: found[name] for name in [*found][-7:]} == {
        "episodes in flight": ("16 of 16", False),
        "episodes waiting for a place": ("24", False),
        "environments": ("env error 2; 5 repeated", True),
        "last failure": ("the browser is gone", True),
        "engine": ("9 requests, 7 queued", False),
        "servers that answer": ("1 of 2", True),
        "left out": ("no answer", True),
    }
    (run_dir / PULSE_FILE).write_text(json.dumps(asdict(replace(beat, at_s=time.time() - 100))))
    assert {name: is_bad for name, _, is_bad in now_of(open_run_folder(run_dir))}["now"], "the process is silent"


def test_an_evaluation_that_goes_on(tmp_path: Path, make_eval: Callable[..., None]) -> None:
    make_eval(tmp_path, num_won=4)
    before = version_of(tmp_path)
    assert names_of(tmp_path) == {
        "state": "finished", "episodes": "10", "success": "40%", "failed episodes": "0 of 10",
    }  # fmt: skip
    (tmp_path / "summary.json").unlink()
    assert version_of(tmp_path) != before
    beat = Beat(at_s=time.time(), doing="playing", done=10, playing=3, limit=8, waiting=5, total=90)
    (tmp_path / PULSE_FILE).write_text(json.dumps(asdict(beat)))
    found = names_of(tmp_path)
    assert "state" not in found and found["episodes in flight"] == "3 of 8, 80 to go"
    assert found["environments"] == "no failure"


def test_suites_that_go_on(tmp_path: Path, make_eval: Callable[..., None]) -> None:
    for policy, num_won in (("oracle", 10), ("random", 2)):
        make_eval(tmp_path / "mugs" / policy, num_won=num_won)
        (tmp_path / "mugs" / policy / "suite.json").write_text("{}")
    (tmp_path / "mugs" / "random" / "summary.json").unlink()
    before = version_of(tmp_path)
    beat = Beat(at_s=time.time(), doing="playing", done=10, playing=3, limit=8, waiting=5, total=90)
    (tmp_path / "mugs" / "random" / PULSE_FILE).write_text(json.dumps(asdict(beat)))
    found = names_of(tmp_path)
    assert (found["episodes"], found["success"], found["episodes in flight"]) == ("20", "60%", "3 of 8, 80 to go")
    make_eval(tmp_path / "mugs" / "idle", num_won=0)
    assert version_of(tmp_path) != before


def test_what_is_served(run_dir: Path) -> None:
    from agentgym.cli.live import _told, make_app, state_of

    client = fastapi_testclient.TestClient(make_app(run_dir, 1.0))
    whole, curves = client.get("/").text, client.get("/curves").text
    assert 'class="block"' in whole and 'class="block"' not in curves
    assert "connect-src 'self'" in whole
    assert 'id="learning"' in curves
    assert not (run_dir / "report.html").exists(), "nothing is written to the run"

    async def first() -> str:
        stream = _told(run_dir, lambda: False)
        message = await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        return message

    told = asyncio.run(first())
    assert told.startswith("data: ") and told.endswith("\n\n")
    assert json.loads(told[6:])["version"] == version_of(run_dir)
    with open(run_dir / "metrics.jsonl", "a") as out:
        out.write("[1]\n")
    assert "cannot be read now" in state_of(run_dir)["now"][0][1]
    with pytest.raises(UsageError, match="no folder"):
        make_app(run_dir / "nowhere", 1.0)


@pytest.fixture
def served(run_dir: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "agentgym", "view", str(run_dir), "--live", "--port", "0", "--json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())["url"], process
    process.kill()
    process.wait()


def test_other_sites_and_strangers_read_nothing(served: tuple[str, subprocess.Popen[str]]) -> None:
    address, _ = served
    page, _, token = address.partition("?token=")
    bearer = {"Authorization": f"Bearer {token}"}
    assert token and "run" in httpx.get(page, headers=bearer, timeout=60).text
    for path in ("", "curves", "events", "nowhere", "health"):
        assert httpx.get(page + path, timeout=60).status_code == 401
        for name in FOREIGN:
            found = httpx.get(page + path, headers={**bearer, **name}, timeout=60)
            assert found.status_code == 403 and "run" not in found.text, (path, name)
    first = httpx.get(address, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, timeout=60)
    assert first.status_code == 403 and "set-cookie" not in first.headers, "as a script or an image of another site"
    port = page.rstrip("/").rpartition(":")[2]
    cookie = {"Cookie": f"agentgym-{port}={token}"}
    assert httpx.get(page, headers=cookie, timeout=60).status_code == 200
    assert httpx.get(page, headers={**cookie, "Host": "evil.example"}, timeout=60).status_code == 403


@pytest.mark.gui
@pytest.mark.skipif(not has_chromium(), reason=f"needs Chromium: {INSTALL}")
def test_curves_and_numbers_follow_the_run(run_dir: Path, served: tuple[str, subprocess.Popen[str]]) -> None:
    address, process = served
    sync_api: Any = pytest.importorskip("playwright.sync_api")
    errors: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        sync_api.expect(page.locator("#now dl")).to_contain_text("RL step", timeout=20_000)
        page.wait_for_selector(".turn")
        row = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
        append_json_line(run_dir / "metrics.jsonl", row | {"phase": "rl", "step": 99, "success": 0.875})
        sync_api.expect(page.locator("#now dl")).to_contain_text("99", timeout=20_000)
        sync_api.expect(page.locator("#learning figcaption").first).to_contain_text("87.5%", timeout=20_000)
        assert page.locator("button.member").count() > 0, "the episodes stay as they are"
        page.locator("#reload").click()
        page.wait_for_selector(".turn")
        assert errors == []
        process.send_signal(signal.SIGINT)  # with the page still open
        sync_api.expect(page.locator("#now dl")).to_contain_text("lost", timeout=20_000)
        browser.close()
    _, said = process.communicate(timeout=20)
    assert process.returncode in (0, 130) and "Traceback" not in said
