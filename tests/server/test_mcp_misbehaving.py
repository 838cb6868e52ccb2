"""MCP servers that misbehave, or that need variables, a folder or headers."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import mcp.client.client  # noqa: F401  (so that no time limit holds its import)
import pytest
from testkit.env_servers import env_server

from agentgym import Task, ToolCall
from agentgym.env.worker_thread import loop_thread
from agentgym.errors import EnvError, EnvTimeoutError, UsageError
from agentgym.tools.mcp import McpServer, McpToolEnv

SERVER = r"""
import json, os, sys
from pathlib import Path

mode, pid_file = sys.argv[1:3]
Path(pid_file).write_text(str(os.getpid()))
WORD = {"type": "object", "properties": {"name": {"type": "string", "pattern": r"^\p{L}+$"}}, "required": ["name"]}
PAIR = {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS = {
    "who": {"inputSchema": WORD},
    "temp": {"inputSchema": {"type": "object"}, "outputSchema": NUMBER},
    "bare": {"inputSchema": {"type": "object"}, "outputSchema": NUMBER},
    "odd": {"inputSchema": {"type": "object"}},
    "where": {"inputSchema": {"type": "object"}},
    "pair": {"inputSchema": {"type": "object", "properties": {"at": PAIR}}},
}
def text(words): return {"content": [{"type": "text", "text": words}]}
RESULTS = {
    "who": lambda arguments: text("hello " + arguments["name"]),
    "temp": lambda arguments: {**text("warm"), "structuredContent": {"n": "warm"}},
    "bare": lambda arguments: text("warm"),
    "odd": lambda arguments: {"content": [{"type": "smell", "text": "?"}]},
    "pair": lambda arguments: text(str(arguments["at"])),
    "where": lambda arguments: text(os.environ.get("MY_KEY", "-") + " " + Path.cwd().name),
}
def answer(asked):
    match asked["method"]:
        case "initialize" if mode == "hang":
            return None
        case "initialize":
            info = {"name": "odd", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list" if mode == "hang in list":
            return None
        case "tools/list":
            listed = {"tools": [{"name": name, **tool} for name, tool in TOOLS.items()]}
            if mode == "same cursor":
                listed["nextCursor"] = "same"
            if mode == "empty cursor":
                listed["nextCursor"] = ""
            if mode == "endless":
                listed["nextCursor"] = str(asked["id"])
            if mode == "two cursors":
                listed["nextCursor"] = "b" if asked.get("params", {}).get("cursor") == "a" else "a"
            return listed
        case "tools/call":
            return RESULTS[asked["params"]["name"]](asked["params"].get("arguments", {}))
        case _:
            return None
for line in sys.stdin:
    asked = json.loads(line)
    if (result := answer(asked)) is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
    elif "id" in asked and not mode.startswith("hang"):
        error = {"code": -32601, "message": "no such method"}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}), flush=True)
"""


def env_of(tmp_path: Path, mode: str = "well", **settings: Any) -> type[McpToolEnv]:
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    command = (sys.executable, str(tmp_path / "server.py"), mode, str(tmp_path / "pid"))

    class Odd(McpToolEnv):
        servers = (McpServer(command=command, **settings),)

        def start(self, task: Task) -> str:
            return "?"

    return Odd


def is_alive(tmp_path: Path) -> bool:
    try:
        os.kill(int((tmp_path / "pid").read_text()), 0)
    except (ProcessLookupError, FileNotFoundError):  # it was ended before its first line
        return False
    return True


async def _tasks() -> list[str]:
    return [str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    loop_thread("agentgym mcp")
    before = threading.active_count()
    yield
    assert loop_thread("agentgym mcp").submit(_tasks()).result(5) == []
    assert threading.active_count() <= before


# ------------------------------------------------------------------------------------------------- at the start


@pytest.mark.parametrize("mode", ["hang", "hang in list", "endless"])
def test_a_server_that_never_gets_ready_is_ended_at_its_limit(tmp_path: Path, mode: str) -> None:
    with pytest.raises(EnvTimeoutError, match=r"server\.py .* did not start within 2 s"):
        env_of(tmp_path, mode, start_timeout_s=2)()
    assert not is_alive(tmp_path)


@pytest.mark.parametrize(("mode", "cursor"), [("same cursor", "same"), ("two cursors", "a")])
def test_a_list_of_tools_without_end_is_refused(tmp_path: Path, mode: str, cursor: str) -> None:
    with pytest.raises(EnvError, match=f"it repeats the cursor '{cursor}' in its list of tools"):
        env_of(tmp_path, mode)()
    assert not is_alive(tmp_path)


# ----------------------------------------------------------------------------------------------- patterns and results


def test_an_empty_cursor_ends_the_list(tmp_path: Path) -> None:
    env = env_of(tmp_path, "empty cursor")()
    try:
        assert [spec.name for spec in env.tools] == ["who", "temp", "bare", "odd", "where", "pair"]
    finally:
        env.close()


def test_tuples_of_draft_07_are_checked_without_a_dialect(tmp_path: Path) -> None:
    env = env_of(tmp_path)()
    try:
        env.reset(seed=0)
        assert env.step("pair: [1, 2]")[0][0].text == "Error: 2 is not of type 'string'. Usage: pair(at?: array)"
        assert env.step('pair: [1, "a"]')[0][0].text == "[1, 'a']"
    finally:
        env.close()


def test_a_pattern_that_python_cannot_compile_is_left_to_the_server(tmp_path: Path) -> None:
    env = env_of(tmp_path)()
    try:
        env.reset(seed=0)
        assert env.step(ToolCall("who", {"name": "Zoë"}))[0][0].text == "hello Zoë"
        refused = env.step(ToolCall("who", {"name": 3}))[0][0].text
        assert refused == "Error: 3 is not of type 'string'. Usage: who(name: string)"
        assert env.action_space.sample() is not None
    finally:
        env.close()
    assert not is_alive(tmp_path)


@pytest.mark.parametrize(
    ("name", "says"),
    [("temp", "Invalid structured content"), ("bare", "did not return structured content"), ("odd", "smell|valid")],
)
def test_a_result_against_the_protocol_names_server_and_tool(tmp_path: Path, name: str, says: str) -> None:
    env = env_of(tmp_path)()
    try:
        env.reset(seed=0)
        with pytest.raises(EnvError, match=rf"server\.py[^:]*: {name}: (?s:.*)({says})"):
            env.step(ToolCall(name, {}))
    finally:
        env.close()


# --------------------------------------------------------------------------------------------------- what servers need


def test_a_command_gets_its_variables_and_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "of this process")
    (tmp_path / "inside").mkdir()
    for settings, said in (
        ({"cwd": str(tmp_path / "inside")}, "- inside"),
        ({"cwd": str(tmp_path), "env": {"MY_KEY": "k-123"}}, f"k-123 {tmp_path.name}"),
    ):
        env = env_of(tmp_path, **settings)()
        try:
            env.reset(seed=0)
            assert env.step(ToolCall("where"))[0][0].text == said
        finally:
            env.close()


def test_headers_mount_the_tools_of_our_own_server() -> None:
    with env_server("agentgym/GuessNumber-v0") as server:
        about = {"env": "agentgym/GuessNumber-v0", "kwargs": {"largest": 4, "hints": False}}
        opened = httpx.post(f"{server.http}/sessions", json=about, headers=server.headers).json()
        session = f"{server.http}/sessions/{opened['session']}"
        httpx.post(f"{session}/reset", json={"seed": 0}, headers=server.headers).raise_for_status()

        def mounted(token: str) -> McpToolEnv:
            class Mounted(McpToolEnv):
                servers = (McpServer(url=f"{server.http}/agent/mcp", headers={"Authorization": f"Bearer {token}"}),)

                def start(self, task: Task) -> str:
                    return "?"

            return Mounted()

        env = mounted(opened["agent_token"])
        try:
            env.reset(seed=0)
            said = [env.step(ToolCall("guess", {"number": number}))[0][0].text for number in (1, 2, 3, 4)]
        finally:
            env.close()
        assert any("Right." in text for text in said), said
        with pytest.raises(EnvError, match=r"HTTP 401 Unauthorized"):
            mounted("wrong")


def test_secrets_are_in_no_message() -> None:
    for server in (
        McpServer(command=("server",), env={"KEY": "secret"}),
        McpServer(url="http://127.0.0.1:1/mcp", headers={"Authorization": "secret"}),
    ):
        assert "secret" not in f"{server!r} {server.place}"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": "http://h", "env": {"A": "b"}}, "env of an MCP server is for a command, which http://h is not"),
        ({"url": "http://h", "cwd": "/"}, "cwd of an MCP server is for a command"),
        ({"command": ("x",), "headers": {"A": "b"}}, "headers of an MCP server is for a url, which x is not"),
        ({"command": ("x",), "env": {"A": 3}}, "env of the MCP server x maps names to texts"),
        ({"command": ("x",), "cwd": "/no/such"}, "cwd of the MCP server x: /no/such is no folder"),
        ({}, "needs either a command or a url"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        McpServer(**settings)
