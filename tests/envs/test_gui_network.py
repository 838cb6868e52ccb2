"""The network of an episode, without a browser: its sites answer, nothing else does, and what was refused is known."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from testkit.gui_pages import NEEDS_CHROMIUM, PageEnv
from testkit.local_servers import QuietServer

from agentgym.envs.gui.network import EpisodeNetwork
from agentgym.envs.gui.site import Folder, Request, Response, Sites, Upstream
from agentgym.errors import EnvError, UsageError
from agentgym.types import Task


class Echo:
    """Says what it was asked."""

    async def answer(self, request: Request) -> Response:
        if request.path == "/fail":
            raise RuntimeError("out of order")
        text = f"{request.method} {request.path} {request.query} {request.form} {request.headers.get('x-a', '')}"
        return Response(body=text.encode(), content_type="text/plain", headers={"x-b": "2"})


def with_network(work: Callable[[EpisodeNetwork, httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        network = EpisodeNetwork()
        await network.start()
        try:
            async with httpx.AsyncClient(proxy=network.url, trust_env=False) as client:
                await work(network, client)
        finally:
            await network.close()

    asyncio.run(run())


def test_a_site_answers() -> None:
    async def work(network: EpisodeNetwork, client: httpx.AsyncClient) -> None:
        network.open_to({"shop.localhost": Echo()})
        got = await client.get("http://shop.localhost/a%20b?q=x&r=", headers={"x-a": "1"})
        assert (got.status_code, got.text) == (200, "GET /a b {'q': 'x', 'r': ''} {} 1")
        assert (got.headers["x-b"], got.headers["cache-control"]) == ("2", "no-store")
        got = await client.post("http://shop.localhost:80/b", data={"name": "Ann é"})  # the same connection
        assert got.text == "POST /b {} {'name': 'Ann é'} "
        assert (await client.head("http://shop.localhost/")).content == b""
        assert network.refused == []

    with_network(work)


def test_nothing_else_answers() -> None:
    async def work(network: EpisodeNetwork, client: httpx.AsyncClient) -> None:
        assert (await client.get("http://shop.localhost/")).status_code == 403  # nothing was opened yet
        network.open_to({"shop.localhost": Echo()})
        for url in (
            "http://example.com/",
            "http://shop.localhost:81/",
            "http://shop.localhost.evil.com/",
            "http://127.0.0.1/",
        ):
            got = await client.get(url)
            assert got.status_code == 403
            assert "is not part of this task. Sites: shop.localhost" in got.text
        with pytest.raises(httpx.ProxyError, match="403"):
            await client.get("https://shop.localhost/")
        assert network.refused == [
            "shop.localhost", "example.com", "shop.localhost:81", "shop.localhost.evil.com", "127.0.0.1", "shop.localhost:443",
        ]  # fmt: skip

    with_network(work)


def test_a_site_that_fails_from_the_start_is_the_environments_failure() -> None:
    async def work(network: EpisodeNetwork, client: httpx.AsyncClient) -> None:
        network.open_to({"shop.localhost": Echo()})
        assert (await client.get("http://shop.localhost/fail")).status_code == 500
        assert str(network.failure) == "site shop.localhost, GET /fail: RuntimeError: out of order"

    with_network(work)


def test_a_request_on_which_a_living_site_crashes_is_a_page_of_an_error() -> None:
    async def work(network: EpisodeNetwork, client: httpx.AsyncClient) -> None:
        network.open_to({"shop.localhost": Echo()})
        await client.get("http://shop.localhost/")
        with pytest.warns(UserWarning, match="GET /fail: RuntimeError: out of order; the site answers other requests"):
            assert (await client.get("http://shop.localhost/fail")).status_code == 500
        assert network.failure is None

    with_network(work)


def test_a_server_elsewhere_answers_by_its_name_here() -> None:
    async def work(network: EpisodeNetwork, client: httpx.AsyncClient) -> None:
        heard: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(4) if b"POST" in head else b""
            heard.append(head + body)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        network.open_to({"wiki.localhost": Upstream("127.0.0.1", server.sockets[0].getsockname()[1])})
        assert (await client.get("http://wiki.localhost/page?x=1")).text == "hello"
        assert (await client.post("http://wiki.localhost/p", content=b"text")).text == "hello"
        assert heard[0].startswith(b"GET /page?x=1 HTTP/1.1\r\nhost: wiki.localhost\r\n")
        assert b"proxy-connection" not in heard[0].lower()
        assert heard[1].endswith(b"\r\n\r\ntext")
        server.close()

    with_network(work)


def test_a_closed_network_answers_nobody() -> None:
    async def work(network: EpisodeNetwork, client: httpx.AsyncClient) -> None:
        network.open_to({"shop.localhost": Echo()})
        await client.get("http://shop.localhost/")
        await network.close()
        with pytest.raises(httpx.TransportError):
            await client.get("http://shop.localhost/")

    with_network(work)


def test_a_folder_gives_its_files_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<p>hi")
    (tmp_path / "site" / "a.js").write_text("1")
    (tmp_path / "secret").write_text("no")
    folder = Folder(tmp_path / "site")

    def get(path: str) -> Response:
        return asyncio.run(folder.answer(Request(method="GET", url=f"http://x.localhost{path}")))

    assert (get("/").body, get("/").content_type) == (b"<p>hi", "text/html; charset=utf-8")
    assert get("/a.js").content_type == "text/javascript; charset=utf-8"
    for path in ("/../secret", "/%2e%2e/secret", "/none", "/" + "x" * 5000, "/%00"):
        assert get(path).status == 404
    with pytest.raises(UsageError, match="no folder"):
        Folder(tmp_path / "nothing")


# ---------------------------------------------------------------------------------------------- servers that are lost

FINE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
COMPLETE = {
    "of a length": FINE,
    "in chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "until it closes": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "without a body": b"HTTP/1.1 204 No Content\r\n\r\n",
    "of a page that is not there": b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
}
CUT = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "half a body": b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\nhello",
    "half the chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
}
ERROR = b"HTTP/1.1 503 Oops\r\ncontent-length: 0\r\n\r\n"


def failure_after(*answers: bytes | None) -> tuple[str, int]:
    """Return the network's failure, and the status of the last answer, after requests to a server.

    Args:
        answers: what the server sends to one request after the other before it closes the connection, the last one also to
            all further ones; None: it is not there.
    """
    found: list[tuple[str, int]] = []

    async def work(network: EpisodeNetwork, client: httpx.AsyncClient) -> None:
        left = list(answers)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write((left.pop(0) if len(left) > 1 else left[0]) or b"")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        network.open_to({"wiki.localhost": Upstream("127.0.0.1", server.sockets[0].getsockname()[1])})
        status = 0
        for number in range(min(2, len(answers))):
            if answers[number] is None:
                server.close()
                await server.wait_closed()
            with suppress(httpx.HTTPError):
                status = (await client.get(f"http://wiki.localhost/{number}")).status_code
        found.append((str(network.failure or ""), status))
        server.close()

    with_network(work)
    return found[0]


@pytest.mark.parametrize("answer", COMPLETE.values(), ids=list(COMPLETE))
def test_a_servers_complete_answer_is_no_failure(answer: bytes) -> None:
    assert failure_after(answer)[0] == ""


@pytest.mark.parametrize("answer", [*CUT.values(), ERROR], ids=[*CUT, "an error"])
def test_a_server_that_only_fails_is_the_environments_failure(answer: bytes) -> None:
    assert "a site of the task was lost: 127.0.0.1:" in failure_after(answer)[0]
    assert "a site of the task was lost: 127.0.0.1:" in failure_after(FINE, answer)[0]


@pytest.mark.parametrize("answer", [*CUT.values(), ERROR], ids=[*CUT, "an error"])
def test_one_request_on_which_a_living_server_fails_is_a_page_of_an_error(answer: bytes) -> None:
    with pytest.warns(UserWarning, match="the site answers other requests"):
        failure, status = failure_after(FINE, answer, FINE)
    assert failure == "" and status in ((503,) if answer is ERROR else (502,) if not answer else (0, 200))


def test_a_server_that_is_gone_is_the_environments_failure() -> None:
    assert "cannot be reached" in failure_after(None)[0]
    assert "cannot be reached" in failure_after(FINE, None)[0]


def test_a_web_socket_to_a_server_that_is_gone_is_the_environments_failure() -> None:
    async def work(network: EpisodeNetwork, client: httpx.AsyncClient) -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        network.open_to({"wiki.localhost:443": Upstream("127.0.0.1", port)})
        with pytest.raises(httpx.HTTPError):
            await client.get("https://wiki.localhost/")
        assert "cannot be reached" in str(network.failure)

    with_network(work)


class ServedEnv(PageEnv):
    """Pages of a server of its own, which a test may close."""

    def __init__(self) -> None:
        super().__init__("")

        class Shop(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(b"<h1>Shop</h1><a href=/cart>Cart</a>")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = QuietServer(("127.0.0.1", 0), Shop)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def sites(self, task: Task) -> Sites:
        return {self.host: Upstream("127.0.0.1", self.server.server_address[1])}

    def lose(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@NEEDS_CHROMIUM[0]
@NEEDS_CHROMIUM[1]
def test_an_episode_whose_site_dies_is_void() -> None:
    env = ServedEnv()
    try:
        env.reset(seed=0)
        assert "Shop" in env.do("click: cart").content
        env.lose()
        with pytest.raises(EnvError, match="a site of the task was lost"):
            env.step("click: cart")
    finally:
        env.close()
