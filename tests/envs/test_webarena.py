"""WebArena-v0: its files, its rules, and tasks in its schema on a guest book that runs here."""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from testkit.gui_pages import NEEDS_CHROMIUM
from testkit.local_servers import QuietServer
from testkit.webarena_site import SIGNED, TASKS, arguments_of, graded, record, written

from agentgym.check import check_env
from agentgym.envs.gui.browser_session import BrowserSession
from agentgym.envs.gui.pool import close_browsers
from agentgym.envs.gui.tab import Tab
from agentgym.envs.gui.web_app.process import AppProcess
from agentgym.envs.gui.web_app.spec import load_web_app
from agentgym.envs.gui.web_arena.configs import member_of, post_url, read_webarena
from agentgym.envs.gui.web_arena.env import WebArenaEnv
from agentgym.envs.gui.web_arena.rules import cleaned, has_contents, includes, is_right_answer, is_right_url
from agentgym.errors import CorruptDataError, EnvError, UnknownNameError, UsageError
from agentgym.evals.suites import load_suite, open_suite

# ------------------------------------------------------------------------------------------------------------- files


def test_tasks_are_read_with_addresses_and_others_left_out_with_a_reason(tmp_path: Path) -> None:
    found = read_webarena(written(tmp_path / "test.raw.json"), {"shopping": "http://s.localhost:7"})
    assert list(found.tasks) == ["0", "1", "2", "6"]
    assert found.tasks["1"].urls == ("http://s.localhost:7/health", "http://s.localhost:7/x")
    assert found.tasks["6"].start_urls == ("http://s.localhost:7", "http://s.localhost:7/health")
    assert found.tasks["6"].storage_state == "shopping_state.json"
    assert {name: why.split(" (")[0] for name, why in found.left_out.items()} == {
        "3": "a language model grades it",
        "4": "it needs the site gitlab",
        "5": "it is graded by the site's own API",
    }
    folder = tmp_path / "files"
    folder.mkdir()
    for number in (10, 9):
        (folder / f"{number}.json").write_text(json.dumps(record(number)))
    assert list(read_webarena(folder, {"shopping": "http://s.localhost"}).tasks) == ["9", "10"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"eval": {}}, "eval_types"),
        ({"eval": graded(["program_html"], program_html=[{**SIGNED, "locator": "alert(1)"}])}, "locator"),
        ({"eval": graded(["program_html"], program_html=[{**SIGNED, "required_contents": {}}])}, "required_contents"),
    ],
)
def test_wrong_tasks_are_named(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptDataError, match=words):
        read_webarena(written(tmp_path / "t.json", [record(0, **changed)]), {"shopping": "http://s.localhost"})


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    path, addresses = written(tmp_path / "t.json"), {"shopping": "http://s.localhost"}
    with pytest.raises(UsageError, match=r"test\.raw\.json"):
        WebArenaEnv(tasks_file=tmp_path / "gone.json", addresses=addresses)
    with pytest.raises(UsageError, match="none of 7 tasks"):
        WebArenaEnv(tasks_file=path, addresses={"reddit": "http://r.localhost"})
    with pytest.raises(UnknownNameError, match="site of WebArena"):
        WebArenaEnv(tasks_file=path, addresses={"shop": "http://s.localhost"})
    with pytest.raises(UsageError, match="http://127"):
        WebArenaEnv(tasks_file=path, addresses={"shopping": "s.localhost"})
    with pytest.raises(UsageError, match=r"auth_dir is missing.*shopping_state\.json"):
        WebArenaEnv(tasks_file=path, addresses=addresses)
    with pytest.raises(UsageError, match="no file"):
        WebArenaEnv(tasks_file=path, addresses=addresses, auth_dir=tmp_path)
    (tmp_path / "shopping_state.json").write_text("[]")
    with pytest.raises(UsageError, match="cookies"):
        WebArenaEnv(tasks_file=path, addresses=addresses, auth_dir=tmp_path)


@pytest.mark.gui
@NEEDS_CHROMIUM[1]
def test_the_suite_reads_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite("webarena")
    monkeypatch.setenv("WEBARENA_DATA", str(tmp_path))
    written(tmp_path / "test.raw.json", TASKS[:2])
    with pytest.raises(UsageError, match=r"sites\.json"):
        open_suite(suite)
    (tmp_path / "sites.json").write_text("[]")
    with pytest.raises(UsageError, match="addresses by site"):
        open_suite(suite)
    hosting = {"addresses": {"shopping": "http://s.localhost"}, "reset_command": ["true"]}
    (tmp_path / "sites.json").write_text(json.dumps(hosting))
    assert [task.id for task in open_suite(suite).parts[0].tasks] == ["0", "1"]


# ------------------------------------------------------------------------------------------------------------- rules


def test_answers_are_compared_as_webarena_does() -> None:
    assert cleaned(' "A b" ') == "a b"
    assert is_right_answer("'N/A'", "n/a", ()) and not is_right_answer("n/a.", "n/a", ())
    assert is_right_answer("It costs 12 dollars, at Anna's", None, ("12", "ANNA"))
    assert not is_right_answer("It costs 12 dollars", None, ("12", "anna"))
    assert is_right_answer("There are 0.", None, ("0",)) and not is_right_answer("There are 10.", None, ("0",))
    assert not is_right_answer("2.0 of 0-5, 0/1", None, ("0",)) and is_right_answer("10 and 0", None, ("0",))
    assert is_right_answer("10 or 20", None, ("0", "1")), "several parts are looked for anywhere"
    assert includes("abc", "B")


@pytest.mark.parametrize(
    ("given", "wanted", "is_right"),
    [
        ("http://s.localhost/a/b/", ["http://s.localhost/a/"], True),
        ("http://s.localhost/b", ["http://s.localhost/a"], False),
        ("http://s.localhost/b", ["http://s.localhost/a", "http://s.localhost/b"], True),
        ("http://s.localhost/a?q=1&p=2", ["http://s.localhost/a?q=1"], True),
        ("http://s.localhost/a?q=2", ["http://s.localhost/a?q=1"], False),
        ("http://s.localhost/a?q=2", ["http://s.localhost/a?q=1", "http://s.localhost/a?q=2"], True),
        ("http://s.localhost/a", ["http://s.localhost/a?q=1"], False),
    ],
)
def test_addresses_are_compared_as_webarena_does(given: str, wanted: list[str], is_right: bool) -> None:
    assert is_right_url(given, wanted) == is_right


def test_contents_are_compared_as_webarena_does() -> None:
    assert has_contents("Tom &amp; Ann", None, ("tom & ann",)) and not has_contents("", None, ("a",))
    assert has_contents("b", None, ("a |OR| b",)) and not has_contents("b", None, ("a |OR| b", "c"))
    assert has_contents(" TRUE", "true", ()) and not has_contents("true!", "true", ())
    assert post_url("func:reddit_get_post_url('http://r.localhost/f/a/1/x')", "") == "http://r.localhost/f/a/1/"
    assert post_url("func:reddit_get_post_url('__last_url__')", "http://r.localhost/all") == "http://r.localhost/all"
    assert 'outerText === "@o\'b"' not in member_of("func:gitlab_get_project_memeber_role(__page__, 'ob')")


# --------------------------------------------------------------------------------------------------- a site that runs


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        made = AppProcess(load_web_app("guestbook"), sys.executable)
        made.begin()
        yield made
        made.close()
    close_browsers()


@pytest.fixture(scope="module")
def arguments(book: AppProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return arguments_of(book, tmp_path_factory.mktemp("webarena"))


@pytest.fixture
def env(arguments: dict[str, Any]) -> Iterator[WebArenaEnv]:
    made = WebArenaEnv(**arguments)
    yield made
    made.close()


def begin(env: WebArenaEnv, number: int) -> str:
    return env.reset(options={"task": str(number)})[0][0].text


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.gui
@NEEDS_CHROMIUM[1]
def test_gold_actions_win_and_a_bare_done_does_not(env: WebArenaEnv, number: int) -> None:
    assert str(TASKS[number]["intent"]) in begin(env, number) and env.task_type == "shopping"
    reward = is_over = 0.0
    while not is_over:
        _, reward, is_over, _, _ = env.step(env.oracle())
    assert reward == 1.0
    begin(env, number)
    assert env.step("done: Sorry")[1:3] == (0.0, True)


@pytest.mark.gui
@NEEDS_CHROMIUM[1]
def test_a_change_is_seen_on_the_page_and_gone_after_the_reset(env: WebArenaEnv) -> None:
    for name, reward in (("Ann Abel", 1.0), ("Bob Bose", 0.0)):
        begin(env, 2)
        for field, text in (("name", name), ("town", "Oslo"), ("message", "Hello")):
            box = next(node for node in env.page.nodes if node.role == "textbox" and field in node.name.lower())
            env.step({"name": "fill", "arguments": {"id": box.id, "text": text}})
        button = next(node for node in env.page.nodes if node.role == "button" and "sign" in node.name.lower())
        env.step({"name": "click", "arguments": {"id": button.id}})
        assert env.step("done: done")[1] == reward, name
    begin(env, 2)
    assert env.step("done: done")[1] == 0.0
    with pytest.raises(UsageError, match="no gold policy"):
        begin(env, 2)
        env.oracle()


@pytest.mark.gui
@NEEDS_CHROMIUM[1]
def test_logins_and_several_tabs(env: WebArenaEnv) -> None:
    begin(env, 6)
    assert [url.rpartition("/")[2] for url in env.session.urls] == ["", "health"]
    seen = env.step({"name": "switch_tab", "arguments": {"number": 2}})
    assert "health" in seen[0][-1].text
    from agentgym.envs.gui.pool import driver

    assert driver().call(env.evaluate("document.cookie + localStorage.a")) == "who=annb"


@pytest.mark.gui
@NEEDS_CHROMIUM[1]
def test_a_reset_that_fails_is_nobodys_reward(arguments: dict[str, Any]) -> None:
    env = WebArenaEnv(**{**arguments, "reset_command": [sys.executable, "-c", "raise SystemExit('no docker')"]})
    with pytest.raises(EnvError, match="no docker"):
        begin(env, 0)
    env.close()
    env = WebArenaEnv(**{**arguments, "addresses": {"shopping": "http://127.0.0.1:9"}, "reset_command": []})
    with pytest.raises(EnvError):
        begin(env, 0)
    env.close()


@pytest.mark.gui
@NEEDS_CHROMIUM[1]
def test_a_tab_that_crashes_while_work_is_graded_is_nobodys_reward(
    env: WebArenaEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(env, 2)
    look, goto = BrowserSession.look, Tab.goto
    opened: list[Tab] = []

    async def opened_by_the_grader(tab: Tab, url: str, timeout_s: float) -> None:
        await goto(tab, url, timeout_s)
        opened.append(tab)

    async def crashed_then_seen(session: BrowserSession, grant_ms: float, everything: bool) -> dict[str, Any]:
        for tab in opened:
            tab.died("it ran out of memory")
        return await look(session, grant_ms, everything)

    monkeypatch.setattr(Tab, "goto", opened_by_the_grader)
    monkeypatch.setattr(BrowserSession, "look", crashed_then_seen)
    with pytest.raises(EnvError, match=r"the tab crashed while .* was opened to grade the work"):
        env.step("done: done")


@pytest.mark.gui
@NEEDS_CHROMIUM[1]
def test_two_episodes_do_not_change_the_same_sites(env: WebArenaEnv, arguments: dict[str, Any]) -> None:
    begin(env, 0)
    other = WebArenaEnv(**arguments)
    with pytest.raises(UsageError, match="one at a time"):
        begin(other, 0)
    env.step("done: 12")
    env.end_episode()
    begin(other, 0)
    other.close()
    begin(env, 0)


@pytest.fixture
def still(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A site that nobody changes: environments share it."""
    (tmp_path / "health").mkdir()
    (tmp_path / "index.html").write_text("<h1>12 entries</h1><a href='/health/'>Health</a>")
    (tmp_path / "health/index.html").write_text("<h1>OK</h1><a href='/'>Back</a>")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = QuietServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    yield {"tasks_file": written(tmp_path / "t.json", TASKS[:2]), "addresses": {"shopping": address}}
    server.shutdown()
    server.server_close()


@pytest.mark.gui
@pytest.mark.slow
@NEEDS_CHROMIUM[1]
def test_the_kit_finds_nothing_wrong(still: dict[str, Any]) -> None:
    report = check_env(lambda: WebArenaEnv(**still, max_turns=8), num_episodes=1)
    failures = {check.name: check.detail for check in report.failures}
    assert set(failures) <= {"splits"}, failures  # all are for testing
