"""MCP with another major version of the package ``mcp``, or with one that cannot be imported."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from typer.testing import CliRunner

from agentgym.cli.main import app
from agentgym.errors import EnvError, MissingExtraError
from agentgym.installation import install_command
from agentgym.tools.mcp import McpConnection, McpServer

PROGRAM = McpServer(command=(sys.executable, "-c", "pass"), start_timeout_s=10.0)


def test_version_one_is_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mcp_types" else found(name))
    with pytest.raises(MissingExtraError, match=r"\[mcp\]'"):
        McpConnection(PROGRAM)
    ran = CliRunner().invoke(app, ["mcp", "agentgym/Maze-v0"])
    assert (ran.exit_code, install_command("mcp") in ran.output) == (2, True), ran.output


def test_a_client_that_cannot_be_imported_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.client.client", None)
    with pytest.raises(EnvError, match="did not start: ModuleNotFoundError"):
        McpConnection(PROGRAM).open()
