"""A user played by a model: what the server is sent, and that its failures are nobody's reward."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from testkit.local_servers import QuietServer

from agentgym.envs.domains.users import STOP
from agentgym.envs.retail.env import RetailEnv
from agentgym.errors import EnvError, EnvTimeoutError, UsageError


class Server:
    """Answers with the texts of ``says`` in turn (a number is a status, None nothing at all), and keeps what it got."""

    def __init__(self) -> None:
        self.says: list[Any] = []
        self.got: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.is_let_go = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                outer.keys.append(self.headers.get("Authorization"))
                said = outer.says.pop(0) if outer.says else "Hm."
                if said is None:
                    outer.is_let_go.wait(30)
                    return
                self.send_response(said if isinstance(said, int) else 200)
                self.end_headers()
                answer = said if isinstance(said, dict) else {"choices": [{"message": {"content": said}}]}
                self.wfile.write(b"no" if isinstance(said, int) else json.dumps(answer).encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self.is_let_go.set()
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def env_with(server: Server, **fields: Any) -> RetailEnv:
    return RetailEnv(user={"url": server.url, "model": "m", "temperature": 0.5, **fields})


def test_the_model_gets_the_scenario_the_talk_and_a_seed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    server.says = ["Hello, cancel it.", "<think>Who am I?</think> I am Mia.", f"Thanks. {STOP}"]
    env = env_with(server, api_key_variable="MY_KEY")
    observation, info = env.reset(seed=5, options={"task": 3})
    assert observation[0].text.endswith("Hello, cancel it.")
    assert info["user"]["said"] == "Hello, cancel it."
    observation, reward, is_over, _, info = env.step("Who are you?")
    assert (observation[0].text, reward, is_over) == ("I am Mia.", 0.0, False)
    _, reward, is_over, _, info = env.step("Goodbye.")
    assert is_over and reward == 0.0 and not info["success"]
    first, _, last = server.got
    assert (first["model"], first["temperature"]) == ("m", 0.5)
    assert [one["seed"] - info["user"]["seed"] for one in server.got] == [0, 1, 2]
    assert env.case.task.scenario.reason_for_call in last["messages"][0]["content"]
    assert [one["role"] for one in last["messages"]] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert last["messages"][-1]["content"] == "Goodbye." and server.keys == ["Bearer secret"] * 3


def test_the_episodes_seed_is_the_users(server: Server) -> None:
    env = env_with(server)
    for seed in (5, 5, 6):
        env.reset(seed=seed, options={"task": 3})
    seeds = [one["seed"] for one in server.got]
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_fork_goes_on_with_the_same_talk(server: Server) -> None:
    env, other = env_with(server), env_with(server)
    env.reset(seed=5, options={"task": 3})
    env.step("Who are you?")
    snapshot = env.snapshot()
    other.restore(snapshot)
    for fork in (env, other):
        fork.step("And where do you live?")
    assert server.got[-1] == server.got[-2] and env.state_key() == other.state_key()


def test_the_asynchronous_path_is_the_same(server: Server) -> None:
    async def talk() -> list[str]:
        env = env_with(server)
        said, _ = await env.areset(seed=5, options={"task": 3})
        answer = await env.astep("Who are you?")
        await env.aclose()
        return [said[0].text.rpartition("\n")[2], answer[0][0].text]

    server.says = ["One.", "Two."]
    assert asyncio.run(talk()) == ["One.", "Two."]


@pytest.mark.parametrize("answer", [500, 404, "", "<think>so", {"choices": []}, {"error": "no model"}])
def test_a_fault_of_the_server_is_no_reward(server: Server, answer: Any) -> None:
    env = env_with(server)
    env.reset(seed=5, options={"task": 3})
    server.says = [answer, answer]
    with pytest.raises(EnvError):
        env.step("Who are you?")


def test_a_fault_that_passes_is_none(server: Server) -> None:
    server.says = [503, "Hello.", 429, "I am Mia."]
    env = env_with(server)
    env.reset(seed=5, options={"task": 3})
    assert env.step("Who are you?")[0][0].text == "I am Mia."


def test_a_server_that_is_down_is_an_error_of_the_infrastructure(server: Server) -> None:
    env = env_with(server)
    env.reset(seed=5, options={"task": 3})
    server.close()
    with pytest.raises(EnvError, match="chat/completions"):
        env.step("Who are you?")
    with pytest.raises(EnvError):
        env.reset(seed=5, options={"task": 3})


def test_a_server_that_hangs_is_a_timeout(server: Server) -> None:
    server.says = [None]
    env = env_with(server, timeout_s=0.2)
    with pytest.raises(EnvTimeoutError):
        env.reset(seed=5, options={"task": 3})


def test_the_oracle_needs_the_scripted_user(server: Server) -> None:
    env = env_with(server)
    env.reset(seed=5, options={"task": 3})
    with pytest.raises(UsageError, match="scripted"):
        env.oracle()


def test_closing_closes_the_connection(server: Server) -> None:
    env = env_with(server)
    env.close()
    assert env._http is not None and env._http.is_closed
