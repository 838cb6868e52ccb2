"""Self-hosted applications: described in a file, started, brought back to their data, graded, and ended."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.gui_pages import NEEDS_CHROMIUM

from agentgym.check import check_env
from agentgym.envs.gui.pool import close_browsers
from agentgym.envs.gui.web_app.env import PYTHON, WebAppEnv, draw_values, worded
from agentgym.envs.gui.web_app.process import AppProcess, make_data
from agentgym.envs.gui.web_app.spec import APPS, WebApp, load_web_app
from agentgym.errors import CorruptDataError, EnvError, EnvTimeoutError, UnknownNameError, UsageError
from agentgym.processes import guard
from agentgym.registry import make

pytestmark = NEEDS_CHROMIUM
KINDS = ("sign", "strike", "whence", "clear")


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    close_browsers()


@pytest.fixture(scope="module")
def env(_cache: None) -> Iterator[WebAppEnv]:
    made = make("agentgym/WebApp-v0")
    assert isinstance(made, WebAppEnv)
    yield made
    made.close()


def play(env: WebAppEnv, task: int, split: str = "train") -> tuple[float, list[str]]:
    """The gold policy's episode: its reward, and the key of every state."""
    env.reset(options={"task": task, "split": split})
    keys, reward, is_over = [env.state_key()], 0.0, False
    while not is_over:
        _, reward, terminated, truncated, _ = env.step(env.oracle())
        keys.append(env.state_key())
        is_over = terminated or truncated
    return reward, keys


def of_kind(env: WebAppEnv, kind: str) -> None:
    env.reset(options={"task": KINDS.index(kind)})


# ------------------------------------------------------------------------------------------------------ episodes


@pytest.mark.parametrize("kind", KINDS)
def test_the_gold_policy_does_every_kind(env: WebAppEnv, kind: str) -> None:
    for split in ("train", "test"):
        at = next(n for n, task in enumerate(env.tasks(split)[:4]) if task.data["kind"] == kind)
        assert play(env, at, split)[0] == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_bare_done_earns_nothing(env: WebAppEnv, kind: str) -> None:
    of_kind(env, kind)
    assert env.step("done: done")[1:3] == (0.0, True)


def test_more_than_was_asked_for_earns_nothing(env: WebAppEnv) -> None:
    of_kind(env, "strike")
    env.step(env.oracle())
    env.step(f"click: {next(env.page.find_all('button', 'Remove')).id}")
    assert env.step('done: ""')[1] == 0.0


def test_an_answer_may_be_worded_with_other_spaces_and_capitals(env: WebAppEnv) -> None:
    of_kind(env, "whence")
    assert env.step(f"done:  {str(env.values['entry_town']).upper()} ")[1] == 1.0


def test_the_same_task_gives_the_same_states(env: WebAppEnv) -> None:
    assert play(env, 3)[1] == play(env, 3)[1]
    assert play(env, 0)[1] == play(env, 0)[1]


def test_every_episode_begins_with_the_same_data(env: WebAppEnv) -> None:
    of_kind(env, "strike")
    before = env.page.text
    env.step(env.oracle())
    assert env.page.text != before
    port = env.copy.port
    of_kind(env, "strike")
    assert (env.page.text, env.copy.port) == (before, port)  # without a restart


def test_a_snapshot_is_returned_to_by_replay(env: WebAppEnv) -> None:
    of_kind(env, "sign")
    env.step(env.oracle())
    env.step(env.oracle())
    snapshot, page = env.snapshot(), env.page
    env.step("click: remove-farid")
    env.restore(snapshot)
    assert env.page == page


def test_copies_do_not_see_each_other() -> None:
    async def remove_all(number: int) -> tuple[float, int]:
        env = WebAppEnv(kinds=["clear"])
        await env.areset(options={"task": number})
        reward, is_over, port = 0.0, False, env.copy.port
        while not is_over:
            _, reward, terminated, truncated, _ = await env.astep(env.oracle())
            is_over = terminated or truncated
        await env.aclose()
        return float(reward), port

    async def together() -> list[tuple[float, int]]:
        return await asyncio.gather(*(remove_all(number) for number in range(3)))

    played = asyncio.run(together())
    assert [reward for reward, _ in played] == [1.0] * 3
    assert len({port for _, port in played}) == 3


@pytest.mark.slow
def test_it_conforms() -> None:
    report = check_env(lambda: WebAppEnv(kinds=["sign"], max_turns=8), num_episodes=1)
    assert [(check.name, check.detail) for check in report.failures] == []


# ------------------------------------------------------------------------------------------------------ processes


def test_an_application_that_ends_is_an_env_error() -> None:
    env = WebAppEnv()
    env.reset(seed=0)
    for pid in _servers(env.copy):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(EnvError, match="the application 'guestbook' has ended"):
        env.step("goto: /")
    env.reset(seed=0)  # and the next episode has a new one
    assert env.page.title == "Guest book"
    env.close()


def test_nothing_is_left_of_a_closed_one() -> None:
    env = WebAppEnv()
    env.reset(seed=0)
    pids, folder = _servers(env.copy), env.copy.database.parent.parent
    assert pids and folder.is_dir()
    env.close()
    assert not any(guard.start_ticks(pid) for pid in pids)
    assert not folder.exists()


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from agentgym.envs.gui.web_app.process import AppProcess\n"
        "from agentgym.envs.gui.web_app.spec import load_web_app\n"
        "copy = AppProcess(load_web_app('guestbook'), sys.executable)\n"
        "copy.begin()\n"
        "print(copy._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    guarding = int(owner.stdout.readline())
    below = [guarding, *guard.below(guarding)]
    assert len(below) == 2
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 20
    while any(guard.start_ticks(pid) for pid in below):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _servers(copy: AppProcess) -> list[int]:
    assert copy._process is not None
    return guard.below(copy._process.pid)


@pytest.mark.parametrize("restarts", [True, False])
def test_data_come_back_with_and_without_a_restart(tmp_path: Path, restarts: bool) -> None:
    shutil.copytree(APPS / "guestbook", tmp_path / "book")
    file = tmp_path / "book" / "app.toml"
    file.write_text(file.read_text().replace("restarts = false", f"restarts = {str(restarts).lower()}"))
    copy = AppProcess(load_web_app(file), sys.executable)
    copy.begin()
    first = _servers(copy)
    with closing(sqlite3.connect(copy.database)) as book, book:
        book.execute("delete from entries")
    (copy.database.parent / "left-over").mkdir()
    copy.begin()
    with closing(sqlite3.connect(copy.database)) as book:
        assert book.execute("select count(*) from entries").fetchone() == (12,)
    assert not (copy.database.parent / "left-over").exists()
    assert (first == _servers(copy)) is not restarts
    copy.close()


def test_what_does_not_start_says_what_it_printed(tmp_path: Path) -> None:
    app = described(
        tmp_path, start='["{python}", "-c", "raise SystemExit(\'no licence\')"]', extra='install = "buy one"'
    )
    copy = AppProcess(app, sys.executable)
    with pytest.raises(EnvError, match=r"(?s)the application 'x' does not start; it needs: buy one.*no licence"):
        copy.begin()
    copy.close()
    slow = described(tmp_path, start='["{python}", "-c", "import time; time.sleep(60)"]', extra="start_s = 0.3")
    copy = AppProcess(slow, sys.executable)
    with pytest.raises(EnvTimeoutError, match=r"does not answer / within 0\.3 s"):
        copy.begin()
    copy.close()


def test_data_that_cannot_be_made_say_why(tmp_path: Path) -> None:
    app = described(tmp_path, data='prepare = ["{python}", "-c", "raise SystemExit(\'no disk\')"]')
    with pytest.raises(EnvError, match=r"(?s)the application 'x' cannot make its data.*no disk"):
        make_data(app, sys.executable)


# --------------------------------------------------------------------------------------------------- descriptions


def described(
    folder: Path, *, start: str = '["true"]', data: str = 'data = "seed"', extra: str = "", task: str = ""
) -> WebApp:
    """An application from a description with parts replaced."""
    (folder / "seed").mkdir(exist_ok=True)
    with closing(sqlite3.connect(folder / "seed" / "x.sqlite")) as made, made:
        made.execute("create table if not exists t (id integer, word text)")
    task = task or 'id = "one"\ninstruction = "Do it."\nanswer = "yes"'
    file = folder / "app.toml"
    file.write_text(
        f'name = "x"\nhost = "x.localhost"\ndatabase = "x.sqlite"\nstart = {start}\n'
        f"{data}\n{extra}\n[[tasks]]\n{task}\n"
    )
    return load_web_app(file)


def test_descriptions_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="guestbook"):
        load_web_app("guest_book")
    with pytest.raises(UsageError, match="no file"):
        load_web_app("missing.toml")
    with pytest.raises(CorruptDataError, match="colour"):
        described(tmp_path, extra='colour = "red"')
    with pytest.raises(UsageError, match="either data, a folder, or prepare"):
        described(tmp_path, data="")
    with pytest.raises(UsageError, match="neither a check nor an answer"):
        described(tmp_path, task='id = "one"\ninstruction = "Do it."')
    with pytest.raises(UnknownNameError, match="unknown task of guestbook 'sing'; did you mean 'sign'"):
        WebAppEnv(kinds=["sing"])


def test_values_come_from_lists_and_rows(tmp_path: Path) -> None:
    values = 'n = [1, 2]\nw = { sql = "select word from t" }'
    task = f'id = "a"\ninstruction = "{{n}} {{w_word}}"\nanswer = ""\n[tasks.values]\n{values}'
    app = described(tmp_path, task=task)
    database = tmp_path / "seed" / "x.sqlite"
    with pytest.raises(CorruptDataError, match="there are no rows to draw 'w' from"):
        draw_values(app.tasks[0], database, np.random.default_rng(0))
    with closing(sqlite3.connect(database)) as made, made:
        made.execute("insert into t values (1, 'tree')")
    drawn = draw_values(app.tasks[0], database, np.random.default_rng(0))
    assert worded(app.tasks[0].instruction, drawn) in ("1 tree", "2 tree")
    with pytest.raises(CorruptDataError, match="no value for 'who'; there are n, w_word"):
        worded("{who}", drawn)


# ---------------------------------------------------------------------------------------------------------- oscar


def oscar_python() -> str:
    """An interpreter that has django-oscar; empty if there is none."""
    python = os.environ.get(PYTHON) or sys.executable
    is_there = subprocess.run([python, "-c", "import oscar, whoosh"], capture_output=True, check=False).returncode == 0
    return python if is_there else ""


NEEDS_OSCAR = pytest.mark.skipif(
    not oscar_python(), reason=f"needs django-oscar: pip install -e '.[webapp]', or {PYTHON}, a python that has it"
)


@NEEDS_OSCAR
@pytest.mark.slow
def test_oscar_by_the_gold_policy() -> None:
    env = WebAppEnv(app="oscar", max_turns=40)
    played = [play(env, number) for number in range(2 * len(env.app.tasks))]
    rewards: dict[str, Any] = {}
    for task, (reward, _) in zip(env.tasks("train"), played, strict=False):
        rewards.setdefault(task.data["kind"], []).append(reward)
    assert rewards == {task.id: [1.0, 1.0] for task in env.app.tasks}
    assert play(env, 0) == played[0]
    for number in range(len(env.app.tasks)):
        env.reset(options={"task": number})
        assert env.step("done: done")[1] == 0.0
    env.close()
