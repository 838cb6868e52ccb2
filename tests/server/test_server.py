"""The server's own promises: planes apart, nothing leaks, nothing hangs, no request crashes it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from testkit.env_servers import EnvServer, env_server
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import agentgym
from agentgym.cli.exits import USAGE
from agentgym.server.metrics import Durations, prometheus_text

MAZE = "agentgym/Maze-v0"
TOKEN = "control"


@pytest.fixture(scope="module")
def server() -> Iterator[EnvServer]:
    arguments = (MAZE, "agentgym/GuessNumber-v0", "--idle-timeout-s", "1.5", "--max-sessions", "6")
    with env_server(*arguments, token=TOKEN) as started:
        yield started


@pytest.fixture
def client(server: EnvServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=20.0) as made:
        until = time.monotonic() + 20
        while made.get("/health").json()["num_sessions"] and time.monotonic() < until:
            time.sleep(0.1)  # those of the test before are reaped
        yield made


def opened(client: httpx.Client, env: str = MAZE, **kwargs: Any) -> dict[str, Any]:
    answer = client.post("/sessions", json={"env": env, "kwargs": kwargs})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def over_socket(server: EnvServer, request: dict[str, object]) -> dict[str, Any]:
    """Return the reply to one request over the WebSocket."""
    with connect(f"{server.url}/ws", additional_headers={"Authorization": f"Bearer {TOKEN}"}) as socket:
        socket.send(json.dumps([{"id": 1, **request}]))
        (reply,) = json.loads(socket.recv())
    return dict(reply)


def test_an_episode_over_plain_http(client: httpx.Client) -> None:
    session = opened(client, size=2)["session"]
    task = client.post("/tasks", json={"env": MAZE, "kwargs": {"size": 2}, "split": "test", "stop": 3}).json()
    assert task["total"] == 1000 and [one["id"] for one in task["tasks"]] == ["test-0", "test-1", "test-2"]
    env = agentgym.make(MAZE, size=2)
    first, _ = env.reset(seed=5, options={"task": 2, "split": "test"})
    begun = client.post(f"/sessions/{session}/reset", json={"task": 2, "split": "test", "seed": 5}).json()
    assert begun["observation"][0]["content"] == first[0].text and begun["tools"][0]["name"]
    total = 0.0
    while True:
        action = env.oracle()
        _, reward, is_over, _, _ = env.step(action)
        sent = {"name": action.calls[0].name, "arguments": action.calls[0].arguments}  # type: ignore[union-attr]
        step = client.post(f"/sessions/{session}/step", json={"action": sent}).json()
        total += reward
        assert sum(part["value"] for part in step["reward_parts"]) == reward and step["terminated"] == is_over
        if is_over:
            break
    graded = client.get(f"/sessions/{session}/grade").json()
    assert graded["success"] is True and graded["is_over"] and graded["reward"] == pytest.approx(total)
    assert client.post(f"/sessions/{session}/step", json={"action": sent}).status_code == 409
    assert client.delete(f"/sessions/{session}").status_code == 200
    assert client.post(f"/sessions/{session}/reset", json={}).status_code == 404


@pytest.mark.parametrize("seed", [-1, "a"])
def test_a_seed_that_is_none_is_refused(client: httpx.Client, server: EnvServer, seed: object) -> None:
    session = opened(client)["session"]
    assert client.post(f"/sessions/{session}/reset", json={"seed": seed}).status_code == 422
    refused = over_socket(server, {"op": "reset", "session": session, "seed": seed})
    assert refused["error"]["message"] == f"{MAZE}: seed must be a whole number from 0 on, got {seed!r}"


def test_a_repeated_request_is_answered_and_not_played_again(client: httpx.Client) -> None:
    key = {"env": "agentgym/GuessNumber-v0", "key": "mine"}
    session = client.post("/sessions", json=key).json()["session"]
    assert client.post("/sessions", json=key).json()["session"] == session
    client.post(f"/sessions/{session}/reset", json={"seed": 1, "seq": 1})
    guess = {"action": {"name": "guess", "arguments": {"number": 1}}, "seq": 2}
    answers = [client.post(f"/sessions/{session}/step", json=guess).json() for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert client.get(f"/sessions/{session}/grade").json()["num_turns"] == 1
    old = client.post(f"/sessions/{session}/step", json={**guess, "seq": 1})
    assert old.status_code == 400 and "older than its last" in old.text


def test_a_full_server_asks_to_wait(client: httpx.Client) -> None:
    sessions = [opened(client)["session"] for _ in range(6)]
    full = client.post("/sessions", json={"env": MAZE})
    assert full.status_code == 503 and int(full.headers["Retry-After"]) >= 1 and "6 sessions" in full.text
    client.delete(f"/sessions/{sessions[0]}")
    assert client.post("/sessions", json={"env": MAZE}).status_code == 200


def test_idle_sessions_are_reaped_and_a_heartbeat_keeps_one(client: httpx.Client) -> None:
    kept, left = opened(client)["session"], opened(client)["session"]
    for _ in range(8):
        time.sleep(0.4)
        assert client.post(f"/sessions/{kept}/heartbeat").status_code == 200
    assert client.get(f"/sessions/{left}/grade").status_code == 404
    assert re.search(r"agentgym_reaped_total [1-9]", client.get("/metrics").text)


def test_the_agents_token_opens_the_tools_and_nothing_else(client: httpx.Client, server: EnvServer) -> None:
    mine, other = opened(client, "agentgym/GuessNumber-v0"), opened(client, "agentgym/GuessNumber-v0")
    client.post(f"/sessions/{mine['session']}/reset", json={"seed": 1})
    client.post(f"/sessions/{other['session']}/reset", json={"seed": 1})
    agent = {"Authorization": f"Bearer {mine['agent_token']}"}
    with httpx.Client(base_url=server.http, headers=agent, timeout=60) as hands:
        tools = hands.get("/agent/tools").json()
        assert [one["function"]["name"] for one in tools] == ["guess"]
        said = hands.post("/agent/call", json={"name": "guess", "arguments": {"number": 1}})
        assert set(said.json()) == {"messages", "is_over"} and "reward" not in said.text
        for method, path, body in (
            ("POST", f"/sessions/{mine['session']}/reset", {}),
            ("POST", f"/sessions/{mine['session']}/step", {"action": "x"}),
            ("POST", f"/sessions/{other['session']}/step", {"action": "x"}),
            ("GET", f"/sessions/{mine['session']}/grade", None),
            ("DELETE", f"/sessions/{other['session']}", None),
            ("POST", "/tasks", {"env": MAZE}),
            ("POST", "/sessions", {"env": MAZE}),
            ("POST", "/describe", {"env": MAZE}),
        ):
            refused = hands.request(method, path, json=body)
            assert refused.status_code == 401, (path, refused.text)
        with pytest.raises(Exception, match="403"), connect(f"{server.url}/ws", additional_headers=agent):
            pass
    assert client.get(f"/sessions/{other['session']}/grade").json()["num_turns"] == 0
    graded = client.get(f"/sessions/{mine['session']}/grade").json()
    assert graded["num_turns"] == 1
    for wrong in ("x", TOKEN, other["agent_token"][:-1], mine["session"]):
        assert (
            httpx.get(
                f"{server.http}/agent/tools", headers={"Authorization": f"Bearer {wrong}"}, timeout=60
            ).status_code
            == 401
        )


def test_bodies_are_limited(client: httpx.Client) -> None:
    assert client.post("/sessions", json="x" * (17 * 1024 * 1024)).status_code == 413
    assert client.post("/sessions", json={"env": MAZE, "weather": 1}).status_code == 422
    assert client.post("/sessions", json={"env": "agentgym/Code-v0"}).status_code == 400
    assert client.post("/sessions", json={"env": MAZE, "kwargs": {"siz": 1}}).status_code == 400


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ('{"env":', "application/json", "the body is not JSON: Expecting value"),
        ('{"env": "x"}', "application/x-www-form-urlencoded", "the header Content-Type: application/json"),
        ("[]", "application/json", "expected a JSON object"),
    ],
)
def test_bodies_that_are_no_json_object_are_named(client: httpx.Client, body: str, kind: str, said: str) -> None:
    answer = client.post("/sessions", content=body, headers={"Content-Type": kind})
    assert answer.status_code in (415, 422) and said in answer.text


@pytest.mark.parametrize("op", ["resett", "dump", None, ["open"]])
def test_an_unknown_operation_is_named(server: EnvServer, op: object) -> None:
    said = over_socket(server, {"op": op, "session": "x"})["error"]["message"]
    operations = said.partition("; there are ")[2].split(", ")
    assert said.startswith(f"no operation {str(op)!r}") and {"open", "step", "restore"} < set(operations)
    assert not {"dump", "load"} & set(operations)


@pytest.mark.parametrize("request_", [{"op": "open"}, {"op": "describe", "env": 7}, {"op": "tasks", "split": "test"}])
def test_a_request_without_an_environment_is_named(server: EnvServer, request_: dict[str, object]) -> None:
    said = over_socket(server, request_)["error"]["message"]
    expected = f"env must be the id of an environment, got {request_.get('env')}; there are "
    assert said.startswith(expected) and MAZE in said


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
OPS = ("open", "describe", "tasks", "reset", "step", "grade", "oracle", "cheats", "close", "heartbeat", "state_key")
REQUEST = st.fixed_dictionaries(
    {"id": st.integers(0, 9), "op": st.sampled_from(OPS) | JSON},
    optional={
        "env": st.sampled_from((MAZE, "agentgym/GuessNumber-v0")) | JSON,
        "session": st.just("SESSION") | JSON,
        "kwargs": st.just({"size": 2}) | JSON,
        "seq": JSON,
        "split": st.just("test") | JSON,
        "start": JSON,
        "stop": JSON,
        "task": st.just(3) | JSON,
        "seed": JSON,
        "action": st.just("north") | JSON,
        "sessions": JSON,
        "text": JSON,
        "key": JSON,
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(frames=st.lists(st.lists(REQUEST, max_size=4) | JSON | st.binary(max_size=30), min_size=1, max_size=4))
def test_any_frame_is_answered(server: EnvServer, frames: list[Any]) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with connect(f"{server.url}/ws", additional_headers=headers, max_size=None) as socket:
        socket.send(json.dumps([{"id": 0, "op": "open", "env": MAZE, "kwargs": {"size": 2}}]))
        found = json.loads(socket.recv(timeout=10))[0].get("ok") or {"session": "none"}
        for frame in frames:
            text = frame if isinstance(frame, bytes) else json.dumps(frame).replace("SESSION", found["session"])
            socket.send(text)
        socket.send(json.dumps([{"id": 77, "op": "heartbeat", "sessions": []}]))
        try:
            while not any(reply["id"] == 77 for reply in json.loads(socket.recv(timeout=10))):
                pass
        except ConnectionClosed as closed:
            pytest.fail(f"the server closed the connection: {closed}")
        if found["session"] != "none":
            socket.send(json.dumps({"id": 78, "op": "close", "session": found["session"]}))
    assert httpx.get(f"{server.http}/health", timeout=60).json()["status"] == "ok"


@pytest.mark.slow
def test_the_schema_holds_for_any_request(server: EnvServer, client: httpx.Client) -> None:
    """Schemathesis: requests made from the OpenAPI schema, good and bad, get no 5xx but a 503 of a full server."""
    import schemathesis
    from hypothesis import Phase
    from schemathesis.core.result import Ok

    schema = schemathesis.openapi.from_url(f"{server.http}/openapi.json")
    statuses: set[int] = set()

    for operation in schema.get_all_operations():
        assert isinstance(operation, Ok)
        made = operation.ok()

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True,
                  phases=[Phase.generate])  # fmt: skip
        @given(case=made.as_strategy())
        def check(case: Any) -> None:
            answer = case.call(headers={"Authorization": f"Bearer {TOKEN}"})
            statuses.add(answer.status_code)
            assert answer.status_code < 500 or answer.status_code == 503, (case, answer.text)

        check()
    assert statuses >= {200, 401, 404}
    time.sleep(4)
    assert client.get("/health").json()["num_sessions"] == 0


def test_a_server_told_to_end_lets_episodes_finish(capfd: pytest.CaptureFixture[str]) -> None:
    with env_server(MAZE, "--drain-s", "30") as server:
        client = httpx.Client(base_url=server.http, headers=server.headers, timeout=60)
        session = client.post("/sessions", json={"env": MAZE}).json()["session"]
        server.process.terminate()
        until = time.monotonic() + 10
        while client.get("/health").json()["status"] != "draining" and time.monotonic() < until:
            time.sleep(0.05)
        assert client.post("/sessions", json={"env": MAZE}).status_code == 503
        assert client.post(f"/sessions/{session}/reset", json={"seed": 0}).status_code == 200
        assert client.delete(f"/sessions/{session}").status_code == 200
        assert server.process.wait(timeout=20) == 0
    assert "ends when its sessions (1) are closed, or in 30 s; Ctrl-C ends it now" in capfd.readouterr().err


def test_bad_arguments_are_one_line() -> None:
    from typer.testing import CliRunner

    from agentgym.cli.main import app

    for arguments, told in (
        ((MAZE, "--host", "0.0.0.0", "--no-token"), "leave out --no-token"),
        ((MAZE, "--token-file", "nowhere"), "nowhere"),
        ((MAZE, "--token-file", "nowhere", "--no-token"), "exclude each other"),
        (("agentgym/Mase-v0",), "did you mean"),
        ((MAZE, "--idle-timeout-s", "0"), "idle_timeout_s must be above 0"),
    ):
        refused = CliRunner().invoke(app, ["serve", *arguments])
        assert refused.exit_code == USAGE and told in refused.output, refused.output


def test_metrics_are_cumulative() -> None:
    durations = Durations()
    for seconds in (0.0005, 0.002, 100.0):
        durations.add(seconds)
    text = prometheus_text(3, {"opened": 4}, durations)
    assert 'agentgym_request_seconds_bucket{le="0.003"} 2' in text
    assert 'le="+Inf"} 3' in text and "agentgym_opened_total 4" in text


@pytest.mark.parametrize("host", ["::1", "0.0.0.0", "::", "localhost"])
def test_the_printed_address_works(host: str) -> None:
    with env_server(MAZE, "--host", host, token=TOKEN) as server:
        assert httpx.get(f"{server.http}/health", trust_env=False, timeout=60).status_code == 200
