"""Clients reach servers on this machine whatever the environment's proxies are, and name proxies in errors."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.env_servers import env_server

import agentgym
from agentgym.errors import ConfigError, EnvError
from agentgym.http_limits import limited_client
from agentgym.proxies import by_proxy, direct_loopback, is_loopback, proxy_of
from agentgym.remote import channel as channel_module
from agentgym.tools.mcp import McpConnection, McpServer
from agentgym.tools.retrieval.client import ClientOptions, RemoteRetriever

MAZE = "agentgym/Maze-v0"
NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "WS_PROXY", "SOCKS_PROXY")


class Proxy:
    """A proxy that refuses every request and counts them."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.num_requests = 0
        self.url = f"http://user:secret@127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            self.num_requests += 1
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.fixture(params=["refuses", "socks5://127.0.0.1:9", "nonsense"])
def proxy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    found = Proxy()
    for name in NAMES:
        monkeypatch.setenv(name, found.url if request.param == "refuses" else request.param)
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.setenv("no_proxy", "example.org")
    yield found
    assert found.num_requests == 0


def test_environments_of_a_server_on_this_machine(proxy: Proxy) -> None:
    with env_server(MAZE) as server:
        for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
            env = agentgym.make(MAZE, url=url, size=2)
            env.reset(seed=0)
            env.close()


def test_a_search_server_on_this_machine(proxy: Proxy, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": "a", "title": "A", "text": "A text."}) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "agentgym", "serve-search", str(corpus), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            assert len(RemoteRetriever(url)) > 0
        finally:
            process.terminate()


def test_an_mcp_server_on_this_machine(proxy: Proxy) -> None:
    command = [sys.executable, "-u", "-m", "agentgym", "mcp", MAZE, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().rpartition(" at ")[2].strip()
            connection = McpConnection(McpServer(url=url))
            connection.open()
            assert [tool.name for tool in connection.tools]
            connection.close()
        finally:
            process.terminate()


def test_the_proxy_is_named_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy()
    for name in NAMES:
        monkeypatch.setenv(name, proxy.url)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    named = rf"by the proxy http://127\.0\.0\.1:{proxy.url.rpartition(':')[2]} of the environment's variables"
    monkeypatch.setattr(channel_module, "PATIENCE_S", 0.3)
    with pytest.raises(EnvError, match=named) as raised:
        agentgym.make(MAZE, url="ws://gym.example:8765")
    assert "secret" not in str(raised.value)
    with pytest.raises(EnvError, match=named):
        RemoteRetriever("http://search.example:8001", ClientOptions(num_tries=1)).search("x", 1)
    with pytest.raises(EnvError, match=named):
        McpConnection(McpServer(url="http://mcp.example/mcp")).open()
    assert proxy.num_requests >= 3


def test_a_proxy_that_no_client_can_use_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "nonsense://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(ConfigError, match=r"the proxy comes from .*HTTP_PROXY"):
        limited_client(to="http://search.example")
    monkeypatch.setattr(channel_module, "PATIENCE_S", 0.3)
    with pytest.raises(EnvError, match="by the proxy nonsense://"):
        agentgym.make(MAZE, url="ws://other.example:8765")


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("ws://127.0.0.1:1", True),
        ("http://[::1]:80/x", True),
        ("http://[::ffff:127.0.0.1]", True),
        ("ws://0.0.0.0:8765", True),
        ("http://LOCALHOST.:3", True),
        ("http://api.localhost", True),
        ("http://localhost.example", False),
        ("http://127.0.0.1.example", False),
        ("http://10.0.0.1", False),
        ("", False),
    ],
)
def test_addresses_of_this_machine(url: str, is_here: bool) -> None:
    assert is_loopback(url) is is_here


def test_no_proxy_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://p.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert proxy_of("http://inside.example/x") == "" and by_proxy("http://inside.example") == ""
    assert proxy_of("http://out.example/x") == "http://p.example:3128"
    with direct_loopback("http://127.0.0.1:1"):
        assert proxy_of("http://out.example/x") == ""
    assert proxy_of("http://out.example/x") == "http://p.example:3128"
