"""Every operation with extreme values, over both transports: never a crash, and never another session's harm.

A bystander plays an episode meanwhile, by the package's own client. Its session's id is a value of the requests, too:
itself in fields that do not choose a session, and slightly changed in those that do.
"""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import httpx
from testkit.env_servers import env_server
from websockets.sync.client import connect

import agentgym
from agentgym.remote.env import RemoteEnv

MAZE = "agentgym/Maze-v0"
OPERATIONS = ("open", "describe", "tasks", "reset", "step", "grade", "snapshot", "restore", "state_key", "oracle",
              "admissible_actions", "cheats", "parse_action", "end_episode", "heartbeat", "close", "dump", "load", "",
              "__class__")  # fmt: skip
FIELDS = ("env", "kwargs", "session", "seq", "split", "start", "stop", "task", "seed", "action", "sessions", "text",
          "key", "state", "options", "id")  # fmt: skip
EXTREMES: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, -(2**70), 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf"), "", "x" * 1_000_000,
    "\x1b[2J\x00", "\ud800", "../../etc/passwd", [], [[]] * 1000, {}, {"role": "assistant"}, {"": None},
    {"name": "move", "arguments": []}, {"role": "user", "content": 7}, [{"name": 1}], "SESSION", "OTHER", ["OTHER"],
    "OTHER ", "OTHER\x00", "OTHER/", {"OTHER": "OTHER"}, "./OTHER", "OTHER%",
)  # fmt: skip
NEARLY_OTHER = (["OTHER"], "OTHER ", "OTHER\x00", "OTHER/", {"OTHER": "OTHER"}, "./OTHER", "OTHER%")
PATHS = (("POST", "/sessions"), ("POST", "/describe"), ("POST", "/tasks"), ("POST", "/sessions/SESSION/reset"),
         ("POST", "/sessions/SESSION/step"), ("POST", "/sessions/SESSION/snapshot"), ("GET", "/sessions/SESSION/grade"),
         ("POST", "/sessions/SESSION/restore"), ("POST", "/sessions/SESSION/heartbeat"), ("POST", "/agent/call"),
         ("DELETE", "/sessions/none"))  # fmt: skip
NUM_CASES = 10_000
EVERY = 50
"""Requests between two turns of the bystander."""
FINE = (200, 400, 401, 404, 409, 422, 503)


def cases() -> list[dict[str, Any]]:
    """Return requests in a shuffled order: each operation with each extreme value in each field, once."""
    rng = random.Random(57)
    found = [
        {"env": MAZE, "session": "SESSION", "split": "test", "op": op, field: value}
        for op, field, value in itertools.product(OPERATIONS, FIELDS, EXTREMES)
        if not (op == "close" and value not in ("SESSION", *NEARLY_OTHER))
        and not (op == "close" and field != "session")
        and (not isinstance(value, str) or len(value) < 1000 or rng.random() < 0.1)
        and not (field == "session" and value == "OTHER")  # clients with the token may use it
    ]
    rng.shuffle(found)
    return found


def opened(client: httpx.Client) -> str:
    answer = client.post("/sessions", json={"env": MAZE, "kwargs": {"size": 2}})
    session = str(answer.raise_for_status().json()["session"])
    client.post(f"/sessions/{session}/reset", json={"seed": 5}).raise_for_status()
    return session


class Bystander:
    """An episode on the server beside the same one in this process."""

    def __init__(self, url: str) -> None:
        self.there, self.here = agentgym.make(MAZE, url=url, size=9), agentgym.make(MAZE, size=9)
        assert self.there.reset(seed=5)[0] == self.here.reset(seed=5)[0]
        self.num_turns = 0

    @property
    def id(self) -> str:
        """Id of its session."""
        assert isinstance(self.there, RemoteEnv)
        return self.there._session

    def move(self) -> None:
        """Take the same turn in both, and again from the start after the last one."""
        action = self.here.oracle()
        there, here = self.there.step(action), self.here.step(action)
        assert there == here, "the bystander's episode has changed"
        self.num_turns += 1
        if here[2] or here[3]:
            assert self.there.reset(seed=5)[0] == self.here.reset(seed=5)[0]

    def placed(self, request: dict[str, Any], session: str) -> str:
        """Return a request as JSON with the ids of both sessions."""
        text = json.dumps(request).replace('"SESSION"', json.dumps(session))
        return text.replace("OTHER%", f"%{ord(self.id[0]):x}{self.id[1:]}").replace("OTHER", self.id)


def test_each_request_has_its_reply_and_the_bystander_its_episode() -> None:
    num_cases = 0
    with (
        env_server(MAZE, "--max-sessions", "8000") as server,
        httpx.Client(base_url=server.http, headers=server.headers, timeout=30) as client,
    ):
        bystander = Bystander(server.url)
        own_session, requests = bystander.id, cases()
        with connect(f"{server.url}/ws", max_size=None, compression=None, additional_headers=server.headers) as socket:
            session = opened(client)
            for number, request in enumerate(requests):
                sent = {**request, "id": request.get("id", number)}
                socket.send(f"[{bystander.placed(sent, session)}]")
                (reply,) = json.loads(socket.recv(timeout=20))
                assert ("ok" in reply) != ("error" in reply)
                assert "Traceback" not in str(reply)[:10_000]
                if request["op"] == "close" and "ok" in reply:
                    session = opened(client)
                if number % EVERY == 0:
                    bystander.move()
                num_cases += 1
        session = opened(client)
        for method, path in PATHS:
            for field, value in itertools.product(FIELDS, EXTREMES):
                body = bystander.placed({"env": MAZE, field: value}, session)
                answer = client.request(
                    method,
                    path.replace("SESSION", session),
                    content=body,
                    headers={"Content-Type": "application/json"},
                )
                assert answer.status_code in FINE, (method, path, field, str(value)[:80], answer.text[:300])
                if num_cases % EVERY == 0:
                    bystander.move()
                num_cases += 1
        assert client.get("/health").json()["status"] == "ok"
        assert bystander.id == own_session and bystander.num_turns > num_cases // EVERY - 2
        bystander.there.close()
    assert num_cases == len(requests) + len(PATHS) * len(FIELDS) * len(EXTREMES) > NUM_CASES


def test_an_agents_token_reaches_no_other_session() -> None:
    with (
        env_server(MAZE) as server,
        httpx.Client(base_url=server.http, headers=server.headers, timeout=30) as client,
    ):
        bystander = Bystander(server.url)
        answer = client.post("/sessions", json={"env": MAZE, "kwargs": {"size": 2}}).raise_for_status().json()
        agents = {"Authorization": f"Bearer {answer['agent_token']}"}
        for method, path in PATHS:
            body = json.dumps({"env": MAZE, "session": bystander.id, "sessions": [bystander.id]})
            found = httpx.request(
                method,
                server.http + path.replace("SESSION", bystander.id).replace("none", bystander.id),
                content=body,
                headers={**agents, "Content-Type": "application/json"},
                timeout=60,
            )
            assert found.status_code in (401, 403, 400, 409, 422), (path, found.status_code, found.text)
            bystander.move()
        bystander.there.close()
