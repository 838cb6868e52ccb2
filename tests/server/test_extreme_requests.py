"""Every operation with extreme values, over both transports: never a crash, and never another session's harm."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import httpx
from testkit.env_servers import env_server
from websockets.sync.client import connect

MAZE = "agentgym/Maze-v0"
OPERATIONS = ("open", "describe", "tasks", "reset", "step", "grade", "snapshot", "restore", "state_key", "oracle",
              "admissible_actions", "cheats", "parse_action", "end_episode", "heartbeat", "close", "dump", "load", "",
              "__class__")  # fmt: skip
FIELDS = ("env", "kwargs", "session", "seq", "split", "start", "stop", "task", "seed", "action", "sessions", "text",
          "key", "state", "options", "id")  # fmt: skip
EXTREMES: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, -(2**70), 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf"), "", "x" * 1_000_000,
    "\x1b[2J\x00", "\ud800", "../../etc/passwd", [], [[]] * 1000, {}, {"role": "assistant"}, {"": None},
    {"name": "move", "arguments": []}, {"role": "user", "content": 7}, [{"name": 1}], "SESSION", "OTHER",
)  # fmt: skip
PATHS = (("POST", "/sessions"), ("POST", "/describe"), ("POST", "/tasks"), ("POST", "/sessions/SESSION/reset"),
         ("POST", "/sessions/SESSION/step"), ("POST", "/sessions/SESSION/snapshot"), ("GET", "/sessions/SESSION/grade"),
         ("POST", "/sessions/SESSION/restore"), ("POST", "/sessions/SESSION/heartbeat"), ("POST", "/agent/call"),
         ("DELETE", "/sessions/none"))  # fmt: skip
NUM_CASES = 10_000
FINE = (200, 400, 401, 404, 409, 422, 503)


def cases() -> list[dict[str, Any]]:
    """Return requests in a shuffled order: each operation with each extreme value in each field, once."""
    rng = random.Random(57)
    found = [
        {"env": MAZE, "session": "SESSION", "split": "test", "op": op, field: value}
        for op, field, value in itertools.product(OPERATIONS, FIELDS, EXTREMES)
        if not (op == "close" and value not in ("SESSION", "OTHER"))
        and not (op == "close" and field != "session")
        and (not isinstance(value, str) or len(value) < 1000 or rng.random() < 0.1)
        and value != "OTHER"
    ]
    rng.shuffle(found)
    return found


def opened(client: httpx.Client) -> str:
    answer = client.post("/sessions", json={"env": MAZE, "kwargs": {"size": 2}})
    session = str(answer.raise_for_status().json()["session"])
    client.post(f"/sessions/{session}/reset", json={"seed": 5}).raise_for_status()
    return session


def test_each_request_has_its_reply_and_the_bystander_its_episode() -> None:
    num_cases = 0
    with (
        env_server(MAZE, "--max-sessions", "4000") as server,
        httpx.Client(base_url=server.http, headers=server.headers, timeout=30) as client,
    ):
        bystander = opened(client)
        before = client.get(f"/sessions/{bystander}/grade").json()
        requests = cases()
        with connect(f"{server.url}/ws", max_size=None, compression=None, additional_headers=server.headers) as socket:
            session = opened(client)
            for number, request in enumerate(requests):
                sent = {**request, "id": request.get("id", number)}
                socket.send(json.dumps([sent]).replace('"SESSION"', json.dumps(session)))
                (reply,) = json.loads(socket.recv(timeout=20))
                assert ("ok" in reply) != ("error" in reply)
                assert "Traceback" not in str(reply)[:10_000]
                if request["op"] == "close" and "ok" in reply:
                    session = opened(client)
                num_cases += 1
        session = opened(client)
        for method, path in PATHS:
            for field, value in itertools.product(FIELDS, EXTREMES):
                body = json.dumps({"env": MAZE, field: value}).replace('"SESSION"', json.dumps(session))
                answer = client.request(
                    method,
                    path.replace("SESSION", session),
                    content=body,
                    headers={"Content-Type": "application/json"},
                )
                assert answer.status_code in FINE, (method, path, field, str(value)[:80], answer.text[:300])
                num_cases += 1
        assert client.get("/health").json()["status"] == "ok"
        assert client.get(f"/sessions/{bystander}/grade").json() == before
    assert num_cases == len(requests) + len(PATHS) * len(FIELDS) * len(EXTREMES) > NUM_CASES
