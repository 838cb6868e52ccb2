"""An environment with hostile peers: pages, tools, a simulated user and a judge.

The task's seed selects the peer. Its behaviour depends on the history of the count, so that the members of a group
receive different answers.
"""

from __future__ import annotations

import os
from typing import Any
from zlib import crc32

import httpx

from agentgym import Message, Task, ToolCall, ToolEnv, register, tool
from agentgym.envs.domains.model_user import ModelUser, UserModel, user_http
from agentgym.envs.domains.task import Scenario
from agentgym.errors import EnvError
from agentgym.tools.web.fetch import Fetcher, FetchOptions
from agentgym.tools.web.retriever import readable_document
from testkit.hostile_peers import FORGED, NASTY, PEERS, SERVER

HTTP = user_http("http://127.0.0.1")


class Hostile(ToolEnv):
    """Count to the task's number by calling add."""

    max_turns = 4

    def start(self, task: Task) -> str:
        self.peer = PEERS[task.seed % len(PEERS)]
        self.at, self.goal, self.path = 0, 2 + task.seed % 3, str(task.seed)
        self._url = os.environ[SERVER]
        return f"Count to {self.goal}. {FORGED if self.peer == 'page' else ''}{self.peer}"

    def state_key(self) -> str:
        return f"{self.peer} {self.at}/{self.goal}"

    def oracle(self) -> Message:
        return Message("assistant", "add: 1", (ToolCall("add", {"number": 1}),))

    @tool
    async def add(self, number: int) -> Any:
        """Add a number to the count."""
        self.at += number
        self.path += f"-{number}"
        if self.at >= self.goal:
            self.finish(self._score() if self.peer == "judge" else float(self.at == self.goal))
        said = await self._peer_says()
        return said if isinstance(said, dict) else f"The count is {self.at}. {said}"

    async def _peer_says(self) -> Any:
        """Return the text that the peer adds to the answer."""
        match self.peer:
            case "page":
                options = FetchOptions(timeout_s=2.0, max_bytes=100_000, obey_robots=False, allow_private=True)
                page = await Fetcher(options).fetch(f"{self._url}/page/{self.path}")
                return readable_document(page, "1").text[:40]
            case "user":
                model = UserModel(url=f"{self._url}/v1", model=self.path)
                return ModelUser(Scenario(reason_for_call="To count."), model, 0, HTTP).begin()[1][:40]
            case "tool":
                return self._nasty()
        return ""

    def _nasty(self) -> Any:
        drawn = crc32(self.path.encode()) % (len(NASTY) + 3)
        if drawn < len(NASTY):
            value = NASTY[drawn]
            return value[:40] if isinstance(value, str) and len(value) < 10_000 else value
        raise [RecursionError(), MemoryError(), UnicodeError("\ud800")][drawn - len(NASTY)]

    def _score(self) -> float:
        try:
            return float(HTTP.get(f"{self._url}/judge/{self.path}").json()["score"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise EnvError(f"the judge gave no score: {error}") from error


register("Hostile-v0", Hostile)
