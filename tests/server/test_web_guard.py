"""The guard before our web servers: pages of other sites, foreign names, forms and clients without a token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from testkit.env_servers import EnvServer, env_server
from testkit.local_servers import FOREIGN, Reply, serving
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import agentgym
from agentgym.endpoint.gateway import Gateway
from agentgym.envs.gui.chromium import INSTALL, find_chromium, has_chromium
from agentgym.errors import UsageError
from agentgym.server_tokens import keeping_token, kept_token, token_for
from agentgym.web_guard import Access, refusal_of

PYTHON = "agentgym/PythonMath-v0"
MAZE = "agentgym/Maze-v0"
OWN = "127.0.0.1:8765"


def refused(
    access: Access | None = None, path: str = "/x", method: str = "GET", kind: str = "http", **headers: str
) -> int:
    """Return the status with which a request is refused, 0 if it is not."""
    given = {"host": OWN, **{name.replace("_", "-"): value for name, value in headers.items()}}
    encoded = [(name.encode(), value.encode()) for name, value in given.items() if value]
    target, _, query = path.partition("?")
    scope = {"type": kind, "method": method, "path": target, "query_string": query.encode(), "headers": encoded}
    found = refusal_of({**scope, "server": ("127.0.0.1", 8765)}, access or Access())
    return 0 if found is None else found.status


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1", "127.9.9.9:80", "[::1]:8765"])
def test_names_of_this_machine_are_known(host: str) -> None:
    assert refused(host=host) == 0


FOREIGN_HOSTS = [
    "evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil.example", "evil.localhost",
    "0.0.0.0:8765", "10.0.0.1", "2130706433", "0x7f.1", "127.0.0.1@evil.example", "evil.example#127.0.0.1", "[::]",
    "[", "",
]  # fmt: skip


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_foreign_name_that_leads_here_is_refused(host: str) -> None:
    assert refused(host=host) == 403
    assert refused(host=host, kind="websocket") == 403


def test_two_hosts_are_refused() -> None:
    headers = [(b"host", b"localhost"), (b"host", b"evil.example")]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    found = refusal_of(scope, Access())
    assert found is not None and found.status == 403 and "2 Host headers" in found.message


def test_names_on_a_network() -> None:
    access = Access(host="0.0.0.0", names=("gym.example.org",))
    for host in ("10.0.0.3:80", "[2001:db8::1]", "search:8001", "localhost", "gym.example.org"):
        assert refused(access, host=host) == 0, host
    assert refused(access, host="evil.example") == 403


ORIGINS = {
    "http://127.0.0.1:8765": 0, "http://127.0.0.1:9000": 403, "http://127.0.0.1": 403, "https://127.0.0.1:8765": 0,
    "http://localhost:8765": 403, "http://evil.example": 403, "null": 403, "file://": 403,
    "chrome-extension://abc": 403,
    "http://127.0.0.1:8765@evil.example": 403, "http://127.0.0.1:8765.evil.example": 403, "http://[": 403,
}  # fmt: skip


@pytest.mark.parametrize(("origin", "status"), ORIGINS.items())
def test_only_the_servers_own_pages_may_use_it(origin: str, status: int) -> None:
    assert refused(origin=origin) == refused(origin=origin, kind="websocket") == status


def test_requests_without_an_origin_that_browsers_make() -> None:
    for site in ("cross-site", "same-site"):
        assert refused(sec_fetch_site=site, sec_fetch_mode="no-cors", sec_fetch_dest="image") == 403
        assert refused(sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="iframe") == 403
        assert refused(sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document") == 0, "a link"
        assert refused(method="POST", sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document") == 403
    assert refused(sec_fetch_site="same-origin", sec_fetch_mode="cors") == refused(sec_fetch_site="none") == 0


def test_bodies_are_json() -> None:
    for kind in ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert refused(method="POST", content_length="2", content_type=kind) == 415
        assert refused(method="PUT", transfer_encoding="chunked", content_type=kind) == 415
        assert refused(method="POST", content_length="0", content_type=kind) == 0
    for kind in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"):
        assert refused(method="POST", content_length="2", content_type=kind) == 0


def test_tokens() -> None:
    access = Access(token="right", cookie="c")
    assert refused(access) == refused(access, authorization="Bearer wrong") == refused(access, cookie="c=wrong") == 401
    assert refused(access, "/health") == refused(access, authorization="Bearer right") == 0
    assert refused(access, "/x?token=right") == refused(access, cookie="a=b; c=right") == 0
    assert refused(Access(token="right"), cookie="c=right") == 401
    assert refused(access, "/health", host="evil.example") == 403, "open paths are open to clients of ours alone"


# ---------------------------------------------------------------------------------- every server, as commands start it


def socket_answer(url: str, **headers: str) -> str:
    """Return "open" if a WebSocket opens, else the status."""
    given = {name.capitalize(): value for name, value in headers.items() if name != "host"}
    try:
        with connect(url, additional_headers=given, proxy=None, open_timeout=60) as socket:
            socket.send(json.dumps([{"id": 1, "op": "describe", "env": MAZE}]))
            return str(json.loads(socket.recv())[0].keys() - {"id"})
    except InvalidStatus as error:
        return str(error.response.status_code)


def test_an_environment_server_refuses_other_sites_and_strangers() -> None:
    with env_server(MAZE, PYTHON) as server:
        assert socket_answer(f"{server.url}/ws", **server.headers, origin="https://evil.example") == "403"
        assert socket_answer(f"{server.url}/ws") == "403", "a program without the token"
        assert "ok" in socket_answer(f"{server.url}/ws", authorization=server.headers["Authorization"])
        foreign: tuple[dict[str, str], ...] = ({"Host": "evil.example"}, {"Origin": "http://evil.example"})
        for headers in foreign:
            for path in ("/health", "/metrics", "/openapi.json"):
                assert httpx.get(server.http + path, headers=headers, timeout=60).status_code == 403
            asked = {"env": PYTHON, "kwargs": {"sandbox": "process"}}
            answer = httpx.post(
                f"{server.http}/sessions", json=asked, headers={**server.headers, **headers}, timeout=60
            )
            assert answer.status_code == 403
        assert httpx.post(f"{server.http}/sessions", json={"env": MAZE}, timeout=60).status_code == 401
        assert httpx.get(f"{server.http}/health", timeout=60).json()["num_sessions"] == 0


def test_the_own_client_finds_the_token_of_a_server_on_this_machine() -> None:
    with env_server(MAZE) as server:
        env = agentgym.make(MAZE, url=server.url, size=2)
        env.reset(seed=0)
        env.close()


def test_without_a_token_clients_choose_no_texts(tmp_path: Path) -> None:
    secret = tmp_path / "questions.json"
    secret.write_text("[]")
    with env_server(MAZE, PYTHON, "agentgym/SearchQA-v0", "--no-token") as server:
        client = httpx.Client(base_url=server.http, timeout=60)
        for kwargs in ({"sandbox": "process"}, {"a": [str(secret)]}, {"b": {"c": 1}}):
            for path in ("/sessions", "/describe", "/tasks"):
                answer = client.post(path, json={"env": PYTHON, "kwargs": kwargs})
                assert answer.status_code == 401 and "numbers and flags alone" in answer.text
        opened = client.post("/sessions", json={"env": MAZE, "kwargs": {"size": 2}}).json()
        own = {"id": "t", "split": "test", "seed": 1, "data": {"path": str(secret)}}
        answer = client.post(f"/sessions/{opened['session']}/reset", json={"task": own})
        assert answer.status_code == 401 and "given out" in answer.text
        env = agentgym.make(MAZE, url=server.url, size=2)  # whose tasks the server has given out
        env.reset(seed=0, options={"task": 1, "split": "test"})
        env.close()


@contextmanager
def started(*words: str) -> Iterator[dict[str, Any]]:
    """Run a command and yield the JSON value that it announces."""
    command = [sys.executable, "-m", "agentgym", *words, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, "the server did not start"
        yield json.loads(line)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"id": "1", "title": "Zebra", "text": "A zebra has stripes."}) + "\n")
    return path


def test_a_search_server_refuses_other_sites_and_strangers(corpus: Path) -> None:
    from agentgym.tools.retrieval.client import RemoteRetriever

    with started("serve-search", str(corpus)) as said:
        url, token = said["url"], {"Authorization": f"Bearer {said['token']}"}
        asked = {"query": "zebra"}
        assert httpx.post(f"{url}/search", json=asked, timeout=60).status_code == 401
        assert httpx.post(f"{url}/search", json=asked, headers=token, timeout=60).status_code == 200
        assert httpx.post(f"{url}/search?token={said['token']}", json=asked, timeout=60).status_code == 200
        assert (
            httpx.post(f"{url}/search", json=asked, headers={**token, "Host": "evil.example"}, timeout=60).status_code
            == 403
        )
        assert httpx.get(f"{url}/health", headers={"Host": "evil.example"}, timeout=60).status_code == 403
        plain = {**token, "Content-Type": "text/plain"}
        assert httpx.post(f"{url}/search", content='{"query": "zebra"}', headers=plain, timeout=60).status_code == 415
        assert RemoteRetriever(url).search("zebra", 1)[0].title == "Zebra"
    with started("serve-search", str(corpus), "--no-token") as said:
        assert httpx.post(f"{said['url']}/search", json=asked, timeout=60).status_code == 200
        assert (
            httpx.post(f"{said['url']}/search", json=asked, headers={"Origin": "null"}, timeout=60).status_code == 403
        )


def test_the_policys_endpoint_refuses_other_sites() -> None:
    import asyncio

    async def ask() -> list[int]:
        gateway = Gateway()
        await gateway.start()
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                headers: tuple[dict[str, str], ...] = (
                    {},
                    {"Host": "evil.example"},
                    {"Origin": "http://evil.example"},
                    {"Host": "host.docker.internal"},
                )
                return [(await client.get(f"{gateway.url}/v1/models", headers=one)).status_code for one in headers]
        finally:
            await gateway.close()

    assert asyncio.run(ask()) == [200, 403, 403, 200]


def test_an_agents_way_out_of_its_sandbox_is_no_way_in(tmp_path: Path) -> None:
    """A sandbox without a network of its own forwards a port of this machine to the endpoint's Unix socket."""
    import asyncio

    from agentgym.endpoint.drivers import in_sandbox
    from agentgym.ports import free_port

    async def ask() -> list[int]:
        gateway, port = Gateway(), free_port()
        await gateway.start(has_socket=True)
        forwarding = asyncio.create_task(
            in_sandbox.main(gateway.socket_path, port, f"until [ -e {tmp_path}/end ]; do sleep 0.1; done")
        )
        url = f"http://127.0.0.1:{port}/v1/models"
        try:
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=5), trust_env=False) as client:
                return [(await client.get(url, headers=one, timeout=60)).status_code for one in ({}, *FOREIGN)]
        finally:
            (tmp_path / "end").touch()
            await forwarding
            await gateway.close()

    assert asyncio.run(ask()) == [200] + [403] * len(FOREIGN)


def test_appworlds_server_refuses_other_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its app runs code; here another app takes its place, since AppWorld needs a Python of its own."""
    import socket
    from types import SimpleNamespace

    import uvicorn
    from fastapi import FastAPI

    from agentgym import web_guard
    from agentgym.envs.appworld import program

    app, ran = FastAPI(), []
    app.post("/execute")(lambda: ran.append(1))
    monkeypatch.setitem(sys.modules, "appworld.serve.environment", SimpleNamespace(app=app))
    servers: list[uvicorn.Server] = []
    make = uvicorn.Server

    def made(config: uvicorn.Config) -> uvicorn.Server:
        servers.append(make(config))
        return servers[0]

    monkeypatch.setattr(uvicorn, "Server", made)
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/execute"
    thread = threading.Thread(target=program.serve, args=(listening, web_guard.__file__), daemon=True)
    thread.start()
    try:
        for foreign in FOREIGN:
            assert httpx.post(url, json={}, headers=foreign, timeout=60).status_code == 403
        assert httpx.post(url, content="{}", headers={"Content-Type": "text/plain"}, timeout=60).status_code == 415
        assert not ran and httpx.post(url, json={}, timeout=60).status_code == 200 and ran
    finally:
        servers[0].should_exit = True
        thread.join()


def test_the_browsers_proxy_refuses_other_sites() -> None:
    import asyncio

    from agentgym.envs.gui.network import EpisodeNetwork

    async def ask() -> tuple[list[int], list[str]]:
        network = EpisodeNetwork()
        await network.start()
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                named: tuple[dict[str, str], ...] = ({}, {"Host": "shop.localhost"}, *FOREIGN)
                said = [(await client.get(f"{network.url}/cart", headers=one)).status_code for one in named]
                said.append(
                    (await client.post(f"{network.url}/cart", headers=FOREIGN[0], content="x" * 99)).status_code
                )
            return said, network.refused
        finally:
            await network.close()

    assert asyncio.run(ask()) == ([403] * (3 + len(FOREIGN)), []), "the agent is told of its own requests alone"


def test_the_guest_book_refuses_other_sites(tmp_path: Path) -> None:
    from http.server import ThreadingHTTPServer

    from agentgym.envs.gui.web_app.apps.guestbook.app import Handler, init

    init(tmp_path)
    handler = type("Own", (Handler,), {"database": tmp_path / "guests.sqlite"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        for method, path in (("GET", "/"), ("POST", "/sign"), ("POST", "/remove")):
            for foreign in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
                assert httpx.request(method, url + path, headers=foreign, timeout=60).status_code == 403
        for host in ("guests.localhost", f"127.0.0.1:{server.server_port}"):
            assert "Farid" in httpx.get(url, headers={"Host": host, "Origin": f"http://{host}"}, timeout=60).text
    finally:
        server.shutdown()
        server.server_close()


def test_tokens_are_kept_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_STATE", str(tmp_path))
    monkeypatch.delenv("AGENTGYM_SERVER_TOKEN", raising=False)
    path = tmp_path / "servers" / "8765.json"
    with keeping_token(8765, "secret"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert token_for("ws://127.0.0.1:8765") == kept_token("http://localhost:8765/v1") == "secret"
        assert token_for("ws://127.0.0.1:8766") == token_for("ws://evil.example:8765") == token_for("ws://[") == ""
        monkeypatch.setenv("AGENTGYM_SERVER_TOKEN", "given")
        assert token_for("ws://127.0.0.1:8765") == "given"
    assert not path.exists() and kept_token("ws://127.0.0.1:8765") == ""
    path.write_text('{"pid": 4194305, "token": "of a killed server"}')
    assert kept_token("ws://127.0.0.1:8765") == ""


# ----------------------------------------------------------------------------------------------------- a real browser

ATTACK = """<!doctype html><title>waiting</title><script>
const [server, token] = [%r, %r], said = []
const tell = (name, what) => said.push(name + ": " + what)
function socket(address) {
  return new Promise(done => {
    const made = new WebSocket(address)
    made.onopen = () => made.send(JSON.stringify([{id: 1, op: "open", env: %r, kwargs: {sandbox: "process"}}]))
    made.onmessage = event => { tell("socket", event.data); done() }
    made.onerror = () => { tell("socket", "refused"); done() }
  })
}
async function ask(name, path, options) {
  try { const answer = await fetch(server + path, options); tell(name, answer.type + answer.status) }
  catch { tell(name, "refused") }
}
(async () => {
  await socket(server.replace("http", "ws") + "/ws")
  await socket(server.replace("http", "ws") + "/ws?token=" + token)
  const body = JSON.stringify({env: %r, kwargs: {sandbox: "process"}})
  await ask("form", "/sessions", {method: "POST", mode: "no-cors", headers: {"Content-Type": "text/plain"}, body})
  await ask("json", "/sessions", {method: "POST", headers: {"Content-Type": "application/json"}, body})
  await ask("read", "/health", {})
  document.title = said.join("; ")
})()
</script>"""


@contextmanager
def page_of(browser_args: list[str]) -> Iterator[Any]:
    sync_api: Any = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", *browser_args])
        yield browser.new_page()
        browser.close()


def title_of(page: Any, address: str) -> str:
    page.goto(address)
    page.wait_for_function("document.title != 'waiting'", timeout=20_000)
    return str(page.title())


@pytest.mark.gui
@pytest.mark.skipif(not has_chromium(), reason=f"needs Chromium: {INSTALL}")
def test_a_page_of_another_site_opens_no_session() -> None:
    with env_server(PYTHON) as server:
        token = server.headers["Authorization"].removeprefix("Bearer ")
        attack = ATTACK % (server.http, token, PYTHON, PYTHON)  # it even knows the token
        rebound = attack.replace(server.http, f"http://evil.example:{server.url.rpartition(':')[2]}")
        with (
            serving(lambda seen: Reply(rebound if seen.path == "/rebound" else attack)) as (site, _),
            page_of(["--host-resolver-rules=MAP evil.example 127.0.0.1"]) as page,
        ):
            port = site.rpartition(":")[2]
            for path in ("/", "/rebound"):
                told = title_of(page, f"http://evil.example:{port}{path}")
                expected = "socket: refused; socket: refused; form: opaque0; json: refused; read: refused"
                assert told == expected, path
            # the name leads to the server itself: its own pages are foreign there, too
            answer = page.goto(f"http://evil.example:{server.url.rpartition(':')[2]}/health")
            assert answer.status == 403
        assert httpx.get(f"{server.http}/health", timeout=60).json()["num_sessions"] == 0
        assert counted(server, "opened") == 0


def counted(server: EnvServer, name: str) -> float:
    lines = [line for line in httpx.get(f"{server.http}/metrics", timeout=60).text.splitlines() if name in line]
    return sum(float(line.split()[-1]) for line in lines if not line.startswith("#"))


def test_bad_options_are_one_line() -> None:
    from agentgym.cli.server_options import access_of

    with pytest.raises(UsageError, match="open to other machines"):
        access_of("0.0.0.0", token_file=None, no_token=True, allow_host=None)
    assert access_of("127.0.0.1", token_file=None, no_token=True, allow_host=None).token == ""
