"""OpenEnv both ways, against the package itself: its client plays ours, and we play what its server serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from testkit.local_servers import FOREIGN
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import agentgym
from agentgym.errors import EnvError, UsageError
from agentgym.types import ToolCall

pytest.importorskip("openenv", reason="needs the package openenv-core (the extra openenv)")

HOUSE = "agentgym/Household-v0"

THEIRS = '''
import sys

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Count(Action):
    by: int


class Counted(Observation):
    count: int


class Counter(Environment):
    """Count from the seed's last digit to 10."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.count = (seed or 0) % 5
        return Counted(count=self.count)

    def step(self, action, timeout_s=None, **kwargs):
        if action.by == 13:
            raise RuntimeError("the wheel came off")
        self.count += action.by
        return Counted(count=self.count, done=self.count >= 10, reward=1.0 if self.count == 10 else 0.0)

    @property
    def state(self):
        return State(step_count=0)


print("ready", flush=True)
app = create_fastapi_app(Counter, Count, Counted, max_concurrent_envs=8)
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
'''


@contextmanager
def ours_served(env: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "agentgym", "serve", env, "--protocol", "openenv", "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"], process
    finally:
        process.kill()
        process.wait()


def test_its_own_client_plays_an_episode_of_ours() -> None:
    from openenv.core.env_server.mcp_types import CallToolAction
    from openenv.core.mcp_client import MCPToolClient

    with ours_served("agentgym/GuessNumber-v0") as (url, _), MCPToolClient(base_url=url).sync() as client:
        client.reset(seed=3)
        (guess,) = client.list_tools()
        assert guess.name == "guess" and "number" in guess.input_schema["properties"]
        local = agentgym.make("agentgym/GuessNumber-v0")
        local.reset(seed=3)
        done = False
        while not done:
            action = local.oracle()
            (call,) = action.calls
            assert isinstance(call, ToolCall)
            result = client.step(CallToolAction(tool_name=call.name, arguments=dict(call.arguments)))
            observation, reward, done, *_ = local.step(action)
            assert (result.observation.result, result.reward, result.done) == (observation[0].text, reward, done)
        assert reward == 1.0


def test_other_sites_play_nothing() -> None:
    with ours_served("agentgym/GuessNumber-v0") as (url, _):
        socket = url.replace("http", "ws") + "/ws"
        for name in FOREIGN:
            for path in ("/health", "/state", "/schema", "/openapi.json", "/docs"):
                assert httpx.get(url + path, headers=name, timeout=60).status_code == 403, (path, name)
            for path in ("/reset", "/step"):
                assert httpx.post(url + path, json={}, headers=name, timeout=60).status_code == 403, (path, name)
            with pytest.raises(InvalidStatus, match="403"):
                connect(socket, additional_headers=name, proxy=None, open_timeout=60)
        form = {"Content-Type": "text/plain"}
        assert httpx.post(f"{url}/reset", content="{}", headers=form, timeout=60).status_code == 415
        with connect(socket, proxy=None, open_timeout=60):
            assert httpx.get(f"{url}/health", timeout=60).status_code == 200


def test_our_adapter_plays_ours_as_if_it_were_here() -> None:
    with ours_served(HOUSE) as (url, _):
        remote = agentgym.make("agentgym/OpenEnv-v0", base_url=url, max_turns=50)
        local = agentgym.make(HOUSE)
        assert {spec.name for spec in remote.tools} == {spec.name for spec in local.tools}
        for seed in range(20):
            begun, here = remote.reset(seed=seed)[0], local.reset(seed=seed)[0]
            assert begun[0].text == "\n\n".join(message.text for message in here)
            done = False
            while not done:
                action = local.oracle()
                observation, reward, done, *_, info = local.step(action)
                replies, paid, ended, *_, about = remote.step(action)
                assert (replies[0].text, paid, ended) == (observation[0].text, reward, done)
            assert about["success"] and info["success"]
        remote.close()


def test_an_environment_of_theirs_is_evaluated(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(THEIRS, encoding="utf-8")
    port = 18_000 + os.getpid() % 2000
    process = subprocess.Popen([sys.executable, str(tmp_path / "theirs.py"), str(port)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        env = waited_for(f"http://127.0.0.1:{port}")
        (act,) = env.tools
        assert act.name == "act" and act.parameters["properties"]["by"]["type"] == "integer"
        observation, _ = env.reset(seed=7)
        assert json.loads(observation[0].text) == {"count": 2}
        assert env.step({"name": "act", "arguments": {"by": "many"}})[4]["is_valid"] is False
        env.step({"name": "act", "arguments": {"by": 3}})
        *_, reward, terminated, _, info = env.step({"name": "act", "arguments": {"by": 5}})
        assert (reward, terminated, info["success"]) == (1.0, True, True)
        env.reset(seed=7)
        with pytest.raises(EnvError):
            env.step({"name": "act", "arguments": {"by": 13}})
        env.reset(seed=7)  # over a new connection
        found = agentgym.evaluate(
            "agentgym/OpenEnv-v0", "random", episodes=4, kwargs={"base_url": f"http://127.0.0.1:{port}"}
        )
        assert found.summary.num_episodes == 4 and found.summary.num_failed == 0
        process.kill()
        process.wait()
        with pytest.raises(EnvError):
            env.step({"name": "act", "arguments": {"by": 1}})
        env.close()
    finally:
        process.kill()


def waited_for(url: str) -> agentgym.Env:
    import time

    for _ in range(100):
        try:
            return agentgym.make("agentgym/OpenEnv-v0", base_url=url)
        except EnvError:
            time.sleep(0.2)
    raise AssertionError(url)


def test_wrong_addresses() -> None:
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        agentgym.make("agentgym/OpenEnv-v0", base_url="localhost")
    with pytest.raises(EnvError, match="is no OpenEnv server"):
        agentgym.make("agentgym/OpenEnv-v0", base_url="http://127.0.0.1:9")
