"""Texts from outside reach neither a terminal as commands nor a protocol as lines."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agentgym.progress import VisibleConsole
from agentgym.visible_text import visible

Command = Callable[..., subprocess.CompletedProcess[str]]

ODD = r'''
import os
import subprocess
import sys

from agentgym import ToolEnv, register, tool

print("module imported")
os.write(1, b"by number\n")
ODD = "\x1b]0;title\x07\x1b[2J\x9b1m\u202egpj.exe\u202c\rover\x08"


class Odd(ToolEnv):
    """Says what terminals obey."""

    max_turns = 3
    takes_words = True

    def start(self, task):
        print("starting an episode")
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
        subprocess.run(["cat"], check=True)  # takes what is left of an inherited input
        return f"page {ODD}"

    def oracle(self):
        from agentgym import Message, ToolCall
        return Message("assistant", "text " + ODD, (ToolCall("look", {}, "0"),))

    def admissible_actions(self):
        return ("look " + ODD,)

    @tool
    def look(self) -> str:
        """Look."""
        self.finish(1.0)
        return f"tool {ODD}"

    @tool
    def fail(self) -> str:
        """Fail."""
        raise RuntimeError(f"fault {ODD}")


class Fails(Odd):
    """Fails with such a text."""

    def start(self, task):
        raise RuntimeError(f"fault {ODD}")


register("Odd-v0", Odd)
register("Fails-v0", Fails)
'''
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def odd(tmp_path: Path) -> str:
    (tmp_path / "odd.py").write_text(ODD, encoding="utf-8")
    return str(tmp_path / "odd.py")


@pytest.fixture
def agentgym(warm_commands: Path, tmp_path: Path) -> Command:
    """Runs the command in a process of its own and returns what it wrote, without translation of line ends."""

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(warm_commands / "agentgym"), *arguments],
            input=stdin.encode(),
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "300"},
            check=False,
            timeout=120,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.mark.parametrize("text", ["plain", "two\nlines\tand a tab", "ünïcode 你好 👩‍🔬"])
def test_ordinary_text_is_kept(text: str) -> None:
    assert visible(text) == text


def test_controls_are_shown() -> None:
    assert visible("\x1b[2J \x07 \x9b \r \x7f \u202e \u2066") == r"\x1b[2J \x07 \x9b \x0d \x7f \u202e \u2066"
    assert visible("a\r\nb") == "a\nb"


def test_a_console_shows_them_in_every_kind_of_output() -> None:
    odd = "a\x1b[2J\u202eb\x9b"
    file = io.StringIO()
    console = VisibleConsole(file=file, force_terminal=True, width=200)
    table = Table(title=odd)
    table.add_column(odd)
    table.add_row(odd, Text(odd))
    for part in (odd, Text(odd, style="bold"), Panel(odd, title=odd), table):
        console.print(part, markup=False)
    console.print(odd, soft_wrap=True)
    written = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())  # the console's own styles
    assert not OBEYED.search(written) and written.count(r"\x1b[2J\u202e") >= 8


def test_commands_show_the_texts_of_an_environment(odd: str, agentgym: Command) -> None:
    runs = [
        agentgym("eval", f"{odd}:Odd-v0", "--policy", "oracle", "--episodes", "1", "--run-dir", "out"),
        agentgym("view", "out", "--episodes", "1"),
        agentgym("play", f"{odd}:Odd-v0", "--policy", "oracle"),
        agentgym("play", f"{odd}:Odd-v0", stdin="actions\nhint\nlook\n"),
        agentgym("describe", f"{odd}:Odd-v0"),
    ]
    for done in runs:
        assert done.returncode == 0, done.stderr
        assert not OBEYED.search(done.stdout + done.stderr), (done.args, done.stdout, done.stderr)
    assert r"\x1b]0;title\x07" in runs[1].stdout and r"\x1b]0;title\x07" in runs[2].stdout


@pytest.mark.parametrize("debug", ["", "1"])
def test_errors_show_them_too(odd: str, agentgym: Command, monkeypatch: pytest.MonkeyPatch, debug: str) -> None:
    monkeypatch.setenv("AGENTGYM_DEBUG", debug)
    for command in (("eval", "--policy", "oracle", "--episodes", "1"), ("play", "--policy", "oracle"), ("mcp",)):
        done = agentgym(command[0], f"{odd}:Fails-v0", *command[1:])
        assert done.returncode != 0 and r"\x1b]0;title\x07" in done.stderr
        assert not OBEYED.search(done.stdout + done.stderr), (done.stdout, done.stderr)


def test_json_is_all_of_standard_output(odd: str, agentgym: Command) -> None:
    for arguments in (
        ("eval", f"{odd}:Odd-v0", "--policy", "oracle", "--episodes", "1", "--json"),
        ("play", f"{odd}:Odd-v0", "--policy", "oracle", "--json"),
        ("describe", f"{odd}:Odd-v0", "--json"),
        ("check", f"{odd}:Fails-v0", "--json"),
    ):
        done = agentgym(*arguments)
        json.loads(done.stdout)
        assert "by number" in done.stderr and done.stdout.isascii()


def test_mcp_writes_messages_alone(odd: str, tmp_path: Path) -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }
    said = "".join(
        json.dumps(line) + "\n"
        for line in (
            hello,
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "look", "arguments": {}}},
        )
    )
    command = [sys.executable, "-m", "agentgym", "mcp", f"{odd}:Odd-v0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(said)
        process.stdin.flush()
        lines = [process.stdout.readline() for _ in range(2)]  # the end of the input would cancel the call
        rest, told = process.communicate(timeout=60)
    assert [json.loads(line).get("id") for line in lines] == [1, 2] and rest == "", told
    assert "module imported" in told and "from a child" in told
