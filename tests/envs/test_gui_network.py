"""The network of an episode, without a browser: its sites answer, nothing else does, and what was refused is known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from agentgym.envs.gui.network import EpisodeNetwork
from agentgym.envs.gui.site import Folder, Request, Response, Upstream
from agentgym.errors import UsageError


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


def test_a_site_that_fails_is_the_environments_failure() -> None:
    async def work(network: EpisodeNetwork, client: httpx.AsyncClient) -> None:
        network.open_to({"shop.localhost": Echo()})
        assert (await client.get("http://shop.localhost/fail")).status_code == 500
        assert str(network.failure) == "site shop.localhost, GET /fail: RuntimeError: out of order"

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
