"""MCP both ways, against the official client and a real server."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import httpx
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent
from testkit.env_servers import env_server
from typer.testing import CliRunner

import agentgym
from agentgym import Message, Task, ToolCall, tool
from agentgym.cli.main import app
from agentgym.errors import EnvError, EnvTimeoutError, UsageError
from agentgym.server.mcp_stdio import McpEpisode
from agentgym.tools.mcp import McpServer, McpToolEnv

TIME = McpServer(
    command=(sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"),
    only=("convert_time",),
    shown=lambda name, text: json.loads(text)["target"]["datetime"][11:16],  # the date differs from day to day
)
ODD_SERVER = '''
import os, sys, time
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

server = MCPServer("odd")

@server.tool()
def die() -> str:
    """End the process."""
    os._exit(1)

@server.tool()
def sleep() -> str:
    """Take long."""
    time.sleep(60)
    return "done"

@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("no such row")

@server.tool()
def protocol(code: int) -> str:
    """Fail by an error of the protocol, as a handler of the low-level server that raises."""
    raise MCPError(code=code, message="no result")

@server.tool()
def long_text() -> str:
    """Say much."""
    return "x" * 100000

server.run()
'''

PLAIN_SERVER = """
import json, sys

X = {"type": "object", "properties": {"page-size": {"type": "string"}}}
PNG = {"type": "image", "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwC", "mimeType": "image/png"}
INSIDE = {"uri": "file:///x", "text": "inside", "mimeType": "text/plain"}
RESULTS = {
    "get-time": {"content": [{"type": "text", "text": "noon"}]},
    "read.file": {"content": [{"type": "resource", "resource": INSIDE}]},
    "count": {"content": [], "structuredContent": {"größe": 3}},
    "hear": {"content": [{"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}]},
    "photo": {"content": [{"type": "image", "data": "/9j/4AAQ", "mimeType": "image/jpeg"}]},
    "torn": {"content": [{"type": "image", "data": "@@@", "mimeType": "image/png"}]},
    "fail": {"content": [{"type": "text", "text": "no row"}, PNG], "isError": True},
}
TOOLS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else [{"name": name, "inputSchema": X} for name in RESULTS]

def say(number, result):
    print("a line for people", flush=True)
    print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)

for line in sys.stdin:
    asked = json.loads(line)
    match asked["method"]:
        case "initialize":
            info = {"name": "plain", "version": "1"}
            say(asked["id"], {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": info})
        case "tools/list":
            say(asked["id"], {"tools": TOOLS})
        case "tools/call":
            say(asked["id"], RESULTS[asked["params"]["name"]])
        case unknown if "id" in asked:  # a client that gets no answer waits for seconds
            error = {"code": -32601, "message": f"no method {unknown}"}
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}), flush=True)
"""


class Zones(McpToolEnv):
    """Convert a time of day to another zone."""

    servers: ClassVar[tuple[McpServer, ...]] = (TIME,)
    max_turns = 3

    def start(self, task: Task) -> str:
        hour = int(self.np_random.integers(0, 10))
        self.asked = f"{hour:02d}:30"
        self.goal = f"{hour + 9:02d}:30"
        return f"It is {self.asked} in UTC. What time is it in Asia/Tokyo?"

    @tool
    def answer(self, time: str) -> str:
        """Say the time."""
        self.finish(1.0 if time == self.goal else 0.0)
        return "Noted."

    def oracle(self) -> Message:
        call = ToolCall("convert_time", {"source_timezone": "UTC", "time": self.asked, "target_timezone": "Asia/Tokyo"})
        return Message("assistant", "", (call if self.turn == 0 else ToolCall("answer", {"time": self.goal}),))


def plain(tmp_path: Path, *arguments: str) -> McpToolEnv:
    (tmp_path / "plain.py").write_text(PLAIN_SERVER, encoding="utf-8")

    class Plain(McpToolEnv):
        servers = (McpServer(command=(sys.executable, str(tmp_path / "plain.py"), *arguments)),)

        def start(self, task: Task) -> str:
            return "?"

    return Plain()


def odd(tmp_path: Path, **settings: Any) -> type[McpToolEnv]:
    (tmp_path / "odd.py").write_text(ODD_SERVER, encoding="utf-8")

    class Odd(McpToolEnv):
        servers = (McpServer(command=(sys.executable, str(tmp_path / "odd.py")), **settings),)

        def start(self, task: Task) -> str:
            return "?"

    return Odd


# ------------------------------------------------------------------------------------------- servers as tools of ours


def test_a_real_servers_tools_in_an_environment() -> None:
    env = Zones()
    assert [spec.name for spec in env.tools] == ["answer", "convert_time"]
    assert "source_timezone" in env.tools[1].parameters["properties"]
    env.reset(seed=3)
    replies, *_ = env.step(env.oracle())
    assert replies[0].text == env.goal
    wrong = {"source_timezone": "Nowhere", "time": "10:00", "target_timezone": "UTC"}
    replies, *_, info = env.step(ToolCall("convert_time", wrong))
    assert replies[0].result is not None and replies[0].result.is_error and not info["is_valid"]
    replies, *_ = env.step(ToolCall("convert_time", {"time": 3}))
    assert replies[0].result is not None and replies[0].result.error_type == "invalid_arguments"
    env.close()
    right = agentgym.collect_rollouts(Zones, "oracle", tasks=3, group_size=2)
    assert [one.reward for group in right for one in group.valid] == [1.0] * 6


def test_faults_of_a_server_are_the_infrastructures(tmp_path: Path) -> None:
    env = odd(tmp_path, timeout_s=5.0)()
    env.reset(seed=0)
    replies, *_ = env.step(ToolCall("fail"))
    assert "no such row" in replies[0].text and replies[0].result.is_error  # type: ignore[union-attr]
    replies, *_ = env.step(ToolCall("long_text"))
    assert len(replies[0].text) < 20_000 and "[cut: 100000 bytes in all]" in replies[0].text
    replies, *_ = env.step(ToolCall("protocol", {"code": -32602}))  # invalid arguments
    assert replies[0].result.error_type == "invalid_arguments"  # type: ignore[union-attr]
    with pytest.raises(EnvError, match="protocol: no result"):
        env.step(ToolCall("protocol", {"code": -32603}))
    env.reset(seed=0)
    with pytest.raises(EnvError):
        env.step(ToolCall("die"))
    env.reset(seed=0)  # in a new process
    replies, *_ = env.step(ToolCall("fail"))
    assert "no such row" in replies[0].text
    env.close()
    slow = odd(tmp_path, timeout_s=1.5, only=("sleep",))()
    slow.reset(seed=0)
    with pytest.raises(EnvTimeoutError):
        slow.step(ToolCall("sleep"))
    slow.close()
    assert not [one for one in children() if "odd.py" in one], "no process is left behind"


def test_results_of_all_kinds_and_output_that_is_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (noise,) = logging.getLogger("mcp.client.stdio").filters
    monkeypatch.setattr(noise, "_is_said", False)

    env = plain(tmp_path)
    env.reset(seed=0)
    said = [env.step(call)[0][0].text for call in ("get-time: page-size=3", "read.file", "count", "hear")]
    assert said == ["noon", "inside", '{"größe": 3}', "[audio content is not shown]"]
    said = [env.step(call)[0][0].text for call in ("photo", "torn", "fail")]
    assert said[:2] == ["[image/jpeg content is not shown]", "[image/png content is not shown]"]
    assert said[2] == "Error: no row\n[image content is not shown]"
    env.close()
    (record,) = [one for one in caplog.records if one.name == "mcp.client.stdio"]
    assert record.exc_info is None and "prints to standard output what is no message" in record.getMessage()


def children() -> list[str]:
    texts = [(task / "children").read_text() for task in Path("/proc/self/task").iterdir()]
    numbers = [number for text in texts for number in text.split()]
    return [Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode() for number in numbers]


def test_a_server_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="did not start"):
        type("Wrong", (Zones,), {"servers": (McpServer(command=(sys.executable, "-c", "pass"), timeout_s=5.0),)})()
    with pytest.raises(UsageError, match=r"no tool 'dye'; it has die, sleep"):
        odd(tmp_path, only=("dye",))()
    with pytest.raises(UsageError, match="a command or a url"):
        McpServer()


def test_a_server_without_usable_tools_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lists no tools"):
        plain(tmp_path, "[]")
    wrong = {"name": "get", "inputSchema": {"type": "object", "properties": {"x": {"type": "whole"}}}}
    with pytest.raises(UsageError, match=r"the tool 'get' an invalid schema: 'whole' .* at \$\.properties\.x\.type"):
        plain(tmp_path, json.dumps([wrong]))


@pytest.mark.parametrize("ref", ["#/$defs/Zone", "https://example.com/zone.json"])
def test_a_schema_that_refers_to_nothing_is_refused(tmp_path: Path, ref: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "items": {"$ref": ref}}}}
    with pytest.raises(UsageError, match=rf"the tool 'get' a schema whose \$ref {re.escape(repr(ref))} refers to"):
        plain(tmp_path, json.dumps([{"name": "get", "inputSchema": schema}]))


def test_a_schema_may_refer_to_its_parts(tmp_path: Path) -> None:
    properties = {"zone": {"$ref": "#/$defs/Zone"}, "$ref": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "$defs": {"Zone": {"enum": ["north"]}}}
    env = plain(tmp_path, json.dumps([{"name": "get", "inputSchema": schema}]))
    env.reset(seed=0)
    assert "'west' is not one of ['north']" in env.step("get: zone=west")[0][0].text
    env.close()


# ------------------------------------------------------------------------------------------ our environments as servers


def test_the_official_client_plays_an_episode(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    command = ["-m", "agentgym", "mcp", "agentgym/GuessNumber-v0", "largest=4", "hints=false", "--record", str(record)]

    async def play() -> list[Any]:
        async with Client(StdioServerParameters(command=sys.executable, args=command)) as client:
            assert "Find my number, between 1 and 4" in str(client.instructions)
            listed = await client.list_tools()
            (guess,) = listed.tools
            assert guess.name == "guess" and "number" in guess.input_schema["properties"]
            said = [await client.call_tool("guess", {"number": number}) for number in (1, 2, 3, 4, 4)]
            return [*said, await client.call_tool("peek", {})]

    said = asyncio.run(play())
    texts = [" ".join(part.text for part in one.content) for one in said]
    assert any("Right." in text for text in texts) and texts[-1] == "The episode is over." and said[-1].is_error
    assert not any("reward" in text for text in texts)
    written = json.loads(record.read_text(encoding="utf-8"))
    assert written["success"] is True and written["reward"] == 1.0 and written["is_over"]
    assert [one["arguments"]["number"] for one in written["calls"]] == [1, 2, 3, 4][: len(written["calls"])]


def test_a_failed_environment_gives_no_reward() -> None:
    class Breaks(Zones):
        servers: ClassVar[tuple[McpServer, ...]] = ()

        @tool
        def crash(self) -> str:
            """Crash."""
            raise RuntimeError("the wheel came off")

    episode = McpEpisode(Breaks(), seed=0, options={})

    async def play() -> None:
        async with Client(episode.server()) as client:
            with pytest.raises(Exception, match="the environment failed"):
                await client.call_tool("crash", {})

    asyncio.run(play())
    assert episode.record["reward"] is None and "wheel" in episode.record["error"]


def test_an_environment_without_tools_is_refused() -> None:
    class Words(agentgym.Env):
        """Only words."""

        def start(self, task: Task) -> str:
            return "?"

    with pytest.raises(UsageError, match="Words has no tools"):
        McpEpisode(Words(), seed=0, options={})
    far = CliRunner().invoke(app, ["mcp", "agentgym/GuessNumber-v0", "--task", "99999999"])
    assert (far.exit_code, "no task 99999999 in split" in far.stderr) == (2, True)
    gone = CliRunner().invoke(app, ["mcp", "agentgym/Nothing-v0"])
    assert gone.exit_code == 2 and "unknown environment" in gone.output


@pytest.mark.parametrize(
    ("place", "why"), [(".", "is a folder; name a file"), ("no/x.json", "cannot be written: No such")]
)
def test_a_record_that_cannot_be_written_is_refused_before_the_episode(place: str, why: str, tmp_path: Path) -> None:
    command = ["mcp", "agentgym/GuessNumber-v0", "--record", str(tmp_path / place)]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2 and why in " ".join(refused.stderr.split())


def test_an_episode_ends_when_its_client_is_gone(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    command = [sys.executable, "-m", "agentgym", "mcp", "agentgym/GuessNumber-v0", "--record", str(record)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.close()  # type: ignore[union-attr]
    try:
        assert process.wait(timeout=30) == 0
    finally:
        process.send_signal(signal.SIGKILL)
    assert json.loads(record.read_text(encoding="utf-8"))["is_over"] is False


# ------------------------------------------------------------------------------------------------ over streamable HTTP


def test_a_line_that_is_no_message_is_answered_with_an_error() -> None:
    command = [sys.executable, "-m", "agentgym", "mcp", "agentgym/Household-v0"]
    given = '{bad\n\n[]\n{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    first, second, *_ = map(json.loads, done.stdout.splitlines())
    assert (first["id"], first["error"]["code"]) == (None, -32700)
    assert first["error"]["message"].startswith("the line is not JSON: key must be a string")
    assert (second["id"], second["error"]["code"]) == (None, -32600)


def test_the_official_client_plays_over_http(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    options = ["largest=4", "hints=false", "--port", "0", "--record", str(record)]
    command = [sys.executable, "-m", "agentgym", "mcp", "agentgym/GuessNumber-v0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]

        async def play() -> str:
            async with Client(url) as client:
                assert "Find my number, between 1 and 4" in str(client.instructions)
                (guess,) = (await client.list_tools()).tools
                said = [await client.call_tool(guess.name, {"number": number}) for number in (1, 2, 3, 4)]
            return " ".join(part.text for one in said for part in one.content if isinstance(part, TextContent))

        for wrong in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):  # a page of another site
            refused = httpx.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=wrong, timeout=60)
            assert refused.status_code == 403
        assert "Right." in asyncio.run(play())
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
    finally:
        process.kill()
    written = json.loads(record.read_text(encoding="utf-8"))
    assert written["success"] is True and written["is_over"]


def with_token(token: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"})


def test_an_agent_token_is_an_mcp_server_of_its_session() -> None:
    with env_server("agentgym/GuessNumber-v0") as server:
        about = {"env": "agentgym/GuessNumber-v0", "kwargs": {"largest": 4, "hints": False}}
        opened = [
            httpx.post(f"{server.http}/sessions", json=about, headers=server.headers, timeout=60).json()
            for _ in range(2)
        ]
        for seed, one in enumerate(opened):
            httpx.post(
                f"{server.http}/sessions/{one['session']}/reset",
                json={"seed": seed},
                headers=server.headers,
                timeout=60,
            ).raise_for_status()
        mcp_url = f"{server.http}/agent/mcp"
        token, other = (one["agent_token"] for one in opened)

        async def play() -> list[str]:
            transport = streamable_http_client(mcp_url, http_client=with_token(token))
            async with Client(transport) as client:
                assert "Find my number, between 1 and 4" in str(client.instructions)
                said = [await client.call_tool("guess", {"number": number}) for number in (1, 2, 3, 4)]
            return [part.text for one in said for part in one.content if isinstance(part, TextContent)]

        said = asyncio.run(play())
        assert any("Right." in text for text in said), said
        assert not any("reward" in text for text in said)
        first, second = (
            httpx.get(f"{server.http}/sessions/{one['session']}/grade", headers=server.headers, timeout=60).json()
            for one in opened
        )
        assert first["success"] is True and first["reward"] == 1.0
        assert second["num_turns"] == 0, "the other session is another episode"
        assert httpx.post(mcp_url, json={}, headers={"Authorization": "Bearer wrong"}, timeout=60).status_code == 401
        assert httpx.get(mcp_url, headers={"Authorization": f"Bearer {other}"}, timeout=60).status_code == 405
