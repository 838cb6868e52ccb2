"""AppWorld's own server and tests, on a small world of our own in its format (``tests/shared/appworld_fixture.py``)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from testkit.local_servers import FOREIGN

from agentgym.envs.appworld.env import AppWorldEnv
from agentgym.envs.appworld.server import PYTHON_VARIABLE, OwnServer, loaded_appworld
from agentgym.errors import EnvError
from agentgym.ports import free_port
from agentgym.types import Message, ToolCall

PYTHON = os.environ.get(PYTHON_VARIABLE, "")
"""A Python that has appworld; its pins clash with those of the tests."""
MAKER = Path(__file__).resolve().parents[1] / "shared" / "appworld_fixture.py"
LOOKS = (
    "print(apis.api_docs.show_app_descriptions())",
    "print(apis.api_docs.show_api_doc(app_name='venmo', api_name='login'))",
    "passwords = {p['account_name']: p['password'] for p in apis.supervisor.show_account_passwords()}\n"
    "email = apis.supervisor.show_profile()['email']\n"
    "login = apis.venmo.login(username=email, password=passwords['venmo'])\nprint(login, datetime.datetime.now())",
    "print(apis.venmo.show_venmo_balance(access_token=login['access_token']), random.random())",
    "apis.venmo.nothing_like_that()",
)


def has_appworld() -> bool:
    return bool(PYTHON) and not subprocess.run([PYTHON, "-c", "import appworld.apps.venmo"], check=False).returncode


pytestmark = pytest.mark.skipif(not has_appworld(), reason=f"set {PYTHON_VARIABLE} to a Python that has appworld")


def made_world(folder: Path, seed: int) -> Path:
    subprocess.run([PYTHON, str(MAKER), str(folder), str(seed)], check=True)
    return folder / "data"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_world(tmp_path_factory.mktemp("appworld"), 7)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Iterator[None]:
    """Keep AppWorld loaded between environments."""
    kept = loaded_appworld(PYTHON)
    yield
    kept.leave()


@pytest.fixture
def env(data: Path) -> Iterator[AppWorldEnv]:
    with closing(AppWorldEnv(data_dir=data, python=PYTHON, reward="share")) as made:
        yield made


def call(code: str) -> Message:
    return Message("assistant", "", (ToolCall("execute", {"code": code}, "0"),))


def played(env: AppWorldEnv, task: str, codes: tuple[str, ...]) -> list[str]:
    (said,), _ = env.reset(options={"task": task})
    return [said.text, *(env.step(call(code))[0][0].text for code in codes)]


def solution(env: AppWorldEnv) -> str:
    (made,) = env.oracle().calls
    assert isinstance(made, ToolCall)
    return str(made.arguments["code"])


def test_the_world_is_the_same_for_the_same_seed(data: Path, tmp_path: Path) -> None:
    def texts(folder: Path) -> dict[str, str]:
        found = sorted((folder / "tasks").rglob("*.json*"))
        return {str(path.relative_to(folder)): path.read_text() for path in found}

    assert texts(made_world(tmp_path, 7)) == texts(data)


@pytest.mark.parametrize("task", ["f1c0de1_1", "f1c0de2_2"])
def test_its_solution_passes_all_tests(env: AppWorldEnv, task: str) -> None:
    env.reset(options={"task": task})
    *_, reward, terminated, _, info = env.step(env.oracle())
    assert (reward, terminated, info["success"], info["tests_failed"]) == (1.0, True, True, ())


def test_doing_nothing_passes_no_task(data: Path) -> None:
    with closing(AppWorldEnv(data_dir=data, python=PYTHON, reward="share", max_turns=1)) as env:
        shares = []
        for task in env.tasks("test"):
            env.reset(options={"task": task})
            *_, reward, _, truncated, info = env.step(Message("assistant", "Sorry, I cannot help with that."))
            assert truncated and not info["success"]
            shares.append(reward)
    assert shares == [pytest.approx(1 / 2), pytest.approx(1 / 5), pytest.approx(1 / 2)]


def test_a_wrong_amount_and_a_change_that_was_not_asked_for(env: AppWorldEnv) -> None:
    env.reset(options={"task": "f1c0de1_2"})
    *_, info = env.step(call(solution(env).replace("amount=AMOUNT", "amount=AMOUNT + 1")))
    asked = "assert it has the receiver, amount and description that are asked for."
    assert (info["success"], info["tests_failed"]) == (False, (asked,))
    env.reset(options={"task": "f1c0de1_1"})
    more = (
        "    apis.simple_note.create_note(access_token=token, title='More', content='')\n    apis.supervisor.complete"
    )
    *_, reward, _, _, info = env.step(call(solution(env).replace("    apis.supervisor.complete", more)))
    assert (reward, info["tests_failed"]) == (0.5, ("assert no model changes, but logins.",))


def test_equal_actions_give_equal_observations(data: Path, env: AppWorldEnv) -> None:
    first = played(env, "f1c0de1_2", LOOKS)
    assert '"name": "venmo"' in first[1] and '"api_name": "login"' in first[2]
    assert "access_token" in first[3] and "2023-05-18 12:00:00" in first[3] and "'venmo_balance': 500.0" in first[4]
    assert first[5].startswith("Execution failed.") and "No API named 'nothing_like_that' found" in first[5]
    played(env, "f1c0de1_1", LOOKS[:1])
    assert played(env, "f1c0de1_2", LOOKS) == first
    with closing(AppWorldEnv(data_dir=data, python=PYTHON)) as other:
        assert played(other, "f1c0de1_2", LOOKS) == first


def test_what_agents_do_wrong_is_an_observation(data: Path) -> None:
    with closing(AppWorldEnv(data_dir=data, python=PYTHON, execute_timeout_s=1)) as env:
        codes = ("1/0", "x = ", "while True: pass", "print(open('/etc/passwd').read())", "import socket", "")
        _, *said = played(env, "f1c0de1_1", codes)
        wanted = (
            "ZeroDivisionError",
            "Syntax error",
            "timed out after 1 seconds",
            "not allowed",
            "not allowed",
            "No code",
        )
        for text, words in zip(said, wanted, strict=True):
            assert words in text
        assert not env.episode.is_over


def test_a_killed_server_is_no_reward(env: AppWorldEnv) -> None:
    env.reset(options={"task": "f1c0de1_1"})
    assert isinstance(env._server, OwnServer) and env._server.pid is not None
    os.kill(env._server.pid, signal.SIGKILL)
    time.sleep(0.2)
    with pytest.raises(EnvError, match="did not answer execute"):
        env.step(call("print(1)"))


@pytest.mark.parametrize("trick", ["do nothing", "read the answer", "patch the tests"])
def test_cheats_win_nothing(data: Path, trick: str) -> None:
    with closing(AppWorldEnv(data_dir=data, python=PYTHON, max_turns=1)) as env:
        env.reset(options={"task": "f1c0de1_1"})
        (action,) = env.cheats()[trick]
        (said,), reward, *_, info = env.step(action)
        assert (reward, info["success"], info["tests_passed"]) == (0.0, False, 1)
        assert ("No such file" in said.text) == (trick == "read the answer")


def test_a_server_that_appworld_itself_starts(data: Path, tmp_path: Path) -> None:
    port = free_port()
    command = [PYTHON, "-m", "appworld.cli", "serve", "environment", "--port", str(port), "--root", str(data.parent)]
    with open(tmp_path / "log.txt", "wb") as log:
        process = subprocess.Popen([*command, "--no-show-usage"], stdout=log, stderr=log, cwd=tmp_path)
    try:
        for _ in range(200):
            try:
                httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        with closing(AppWorldEnv(data_dir=data, url=f"http://127.0.0.1:{port}")) as env:
            for task in ("f1c0de1_2", "f1c0de1_1"):
                env.reset(options={"task": task})
                *_, info = env.step(env.oracle())
                assert info["success"] and info["tests_failed"] == ()
            env.reset(options={"task": "f1c0de1_1"})
            *_, info = env.step(call("apis.supervisor.complete_task()"))
            assert not info["success"]
    finally:
        process.kill()
        process.wait()


def test_the_tasks_clock_stands_still_so_tokens_do_not_expire(env: AppWorldEnv) -> None:
    """A harness that lets the clock run loses its tokens, which last ten minutes, in the middle of a task."""
    clock = "from datetime import datetime\nprint(datetime.now().isoformat())"
    first, *_, second = played(env, "f1c0de1_2", (clock, "sum(range(10**6))", clock))[1:]
    assert first == second and first.startswith("2023-05-18")


def test_an_answer_to_a_task_that_asks_for_none_is_judged_by_appworld(env: AppWorldEnv) -> None:
    env.reset(options={"task": "f1c0de1_2"})
    code = solution(env)
    answered = re.sub(r"complete_task\([^)]*\)", "complete_task(answer='done')", code)
    assert answered != code
    *_, info = env.step(call(answered))
    assert info["success"] is False and info["tests_failed"]


def test_a_page_of_another_site_runs_no_code(env: AppWorldEnv) -> None:
    env.reset(options={"task": "f1c0de1_1"})
    assert isinstance(env._server, OwnServer)
    body = {"task_id": "f1c0de1_1", "code": "print(1)"}
    for foreign in FOREIGN:
        answer = httpx.post(f"{env._server._url}/execute", json=body, headers=foreign, timeout=60, trust_env=False)
        assert answer.status_code == 403
