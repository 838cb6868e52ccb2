"""A retriever behind HTTP: the same answers as beside it, errors of the policy as such, failures as failures."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from testkit.corpora import DOCUMENTS
from testkit.local_servers import Reply, Seen, serving

from agentgym import ToolEnv
from agentgym.errors import ConfigError, EnvError, EnvTimeoutError, ToolError
from agentgym.rollout.agent import ScriptedAgent
from agentgym.rollout.loop import run_episode
from agentgym.rollout.request import RolloutRequest
from agentgym.tools.retrieval.body_limits import BodyLimits
from agentgym.tools.retrieval.client import ClientOptions, RemoteRetriever
from agentgym.tools.retrieval.corpus import corpus_of
from agentgym.tools.retrieval.indexes import IndexOptions, open_retriever
from agentgym.tools.retrieval.types import Retriever, adocument, asearch
from agentgym.tools.search import Reading, SearchTools
from agentgym.types import Message, Status, Task, ToolCall, Trajectory

pytest.importorskip("fastapi")
import uvicorn
from websockets.sync.client import connect

from agentgym.tools.retrieval import header_limit, inline
from agentgym.tools.retrieval.server import LIMITS, search_app

QUICK = ClientOptions(timeout_s=2.0, num_tries=2, backoff_s=0.01)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    return open_retriever(corpus_of(DOCUMENTS), IndexOptions(cache=tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def url(local: Retriever) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(search_app(local, "small"), log_level="warning", **LIMITS))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def remote(url: str) -> Iterator[RemoteRetriever]:
    retriever = RemoteRetriever(url, QUICK)
    yield retriever
    retriever.close()


def test_a_client_answers_as_the_retriever_it_asks(remote: RemoteRetriever, local: Retriever) -> None:
    assert remote.search("demons of the underworld", 3) == local.search("demons of the underworld", 3)
    assert remote.document("café") == local.document("café")
    assert len(remote) == len(local)


def test_it_is_awaited(remote: RemoteRetriever, local: Retriever) -> None:
    async def ask_at_once() -> list[object]:
        return await asyncio.gather(*(asearch(remote, "demon", n) for n in range(1, 20)), adocument(remote, "ur"))

    expected = [*(local.search("demon", n) for n in range(1, 20)), local.document("ur")]
    assert asyncio.run(ask_at_once()) == expected
    assert asyncio.run(ask_at_once()) == expected  # in another loop, where the first one's connections are no use


@pytest.mark.parametrize("query", ["?", "", "\ud800"])
def test_what_the_policy_does_wrong_comes_back_as_that(remote: RemoteRetriever, query: str) -> None:
    with pytest.raises(ToolError, match="no word") as raised:
        remote.search(query, 3)
    assert raised.value.error_type == "invalid_query"
    with pytest.raises(ToolError, match="'gallu'"):
        asyncio.run(remote.adocument("galu"))


@pytest.mark.parametrize("query", ['"; DROP TABLE documents', "\0 demon", "demon " * 20_000, "{}[]^~* demon"])
def test_hostile_queries_have_answers(remote: RemoteRetriever, local: Retriever, query: str) -> None:
    assert remote.search(query, 2) == local.search(query, 2)


def test_other_trainers_ask_as_search_r1_does(url: str) -> None:
    body = {"queries": ["demon dice", "?", "ziggurat"], "topk": 1, "return_scores": True}
    dice, nothing, ur = httpx.post(f"{url}/retrieve", json=body).json()["result"]
    assert dice[0]["document"] == {"id": "dice", "contents": f'"Demon Dice"\n{DOCUMENTS[3].text}'}
    assert dice[0]["score"] > 0
    assert (nothing, ur[0]["document"]["id"]) == ([], "ur")
    without = httpx.post(f"{url}/retrieve", json={"queries": ["demon dice"]}).json()["result"]
    assert without[0][0] == dice[0]["document"]
    assert httpx.post(f"{url}/retrieve", json={"queries": "demon"}).status_code == 400


UNREADABLE = [
    b'{"query": "a", "k": NaN}',
    b'{"query": "' + b"\\ud800" + b'"}',
    b'{"query": ' + b"[" * 100_000,
    b'{"query": {"secret": "hunter2"}}',
    b"\xff\xfe",
]


@pytest.mark.parametrize("body", UNREADABLE)
@pytest.mark.parametrize("path", ["/search", "/retrieve", "/document"])
def test_requests_that_cannot_be_read_are_refused_without_an_echo(url: str, path: str, body: bytes) -> None:
    response = httpx.post(url + path, content=body, headers={"Content-Type": "application/json"}, trust_env=False)
    assert response.status_code == 400
    assert "hunter2" not in response.text and "NaN" not in response.text and len(response.content) < 2_000


def test_large_bodies_are_refused_while_they_come(url: str) -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"query": "'
        for _ in range(40):
            yield b"a" * 100_000

    assert httpx.post(url + "/search", content=b"0" * 2_000_000, trust_env=False).status_code == 413
    assert httpx.post(url + "/search", content=endless(), trust_env=False).status_code == 413
    assert httpx.get(url + "/health", trust_env=False).status_code == 200


def test_a_sender_that_stops_is_given_up() -> None:
    sent: list[dict[str, Any]] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def never() -> Any:
        await asyncio.Event().wait()

    async def app(*_: Any) -> None:
        raise AssertionError("the app saw a request without its body")

    asyncio.run(BodyLimits(app, timeout_s=0.01)({"type": "http"}, never, send))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize("num_answered", [0, 1, 2])
def test_a_client_that_drips_its_headers_is_cut_off(
    url: str, num_answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header_limit, "HEADER_TIMEOUT_S", 0.2)
    with socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0), timeout=20) as client:
        for _ in range(num_answered):
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(65_536).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /health HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            while True:
                client.sendall(b"X: y\r\n")
                threading.Event().wait(0.05)


def test_a_websocket_may_be_silent_for_longer_than_headers_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_limit, "HEADER_TIMEOUT_S", 0.2)

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "websocket":
            return
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": (await receive())["text"]})

    config = uvicorn.Config(
        echo, port=0, http=header_limit.PunctualHTTP, ws="websockets-sansio", lifespan="off", log_level="warning"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        with connect(f"ws://127.0.0.1:{port}/", compression=None, proxy=None) as client:
            time.sleep(0.6)
            client.send("still here")
            assert client.recv(timeout=60) == "still here"
    finally:
        server.should_exit = True
        thread.join(60)


def test_a_request_whose_answer_takes_longer_than_headers_may_is_answered(
    url: str, local: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header_limit, "HEADER_TIMEOUT_S", 0.2)
    search = type(local).search

    def slow(*arguments: Any) -> Any:
        threading.Event().wait(0.5)
        return search(*arguments)

    monkeypatch.setattr(type(local), "search", slow)
    assert httpx.post(f"{url}/search", json={"query": "demon"}).json()["hits"]


def test_after_one_long_search_the_next_holds_up_nobody(
    url: str, local: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked, go_on = threading.Event(), threading.Event()

    def wait(query: str, k: int) -> tuple[()]:
        if query == "first":
            time.sleep(2 * inline.LONG_S)
            return ()
        is_asked.set()
        assert go_on.wait(30)
        return ()

    monkeypatch.setattr(local, "search", wait)
    httpx.post(url + "/search", json={"query": "first"}, trust_env=False)
    asking = threading.Thread(target=lambda: httpx.post(url + "/search", json={"query": "a"}, trust_env=False))
    asking.start()
    assert is_asked.wait(30)
    assert httpx.get(url + "/health", timeout=20, trust_env=False).status_code == 200
    go_on.set()
    asking.join()


def test_a_query_that_is_too_long_is_the_policys_doing(url: str, remote: RemoteRetriever) -> None:
    with pytest.raises(ToolError, match="at most 200,000 characters"):
        remote.search("a" * 200_001, 1)
    answer = httpx.post(url + "/search", json={"query": "a" * 200_001}, trust_env=False)
    assert answer.status_code == 422 and answer.json()["error"]["type"] == "too_long"


def test_health_says_what_is_served(url: str) -> None:
    health = httpx.get(f"{url}/health").json()
    assert (health["status"], health["num_documents"], health["name"]) == ("ok", len(DOCUMENTS), "small")


# ------------------------------------------------------------------------------------------------------ failures


def ask_both_ways(retriever: RemoteRetriever, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        retriever.search("demon", 1)
    with pytest.raises(error, match=match):
        asyncio.run(retriever.adocument("ur"))


def test_a_server_that_is_gone_is_no_ones_doing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    ask_both_ways(RemoteRetriever(url, QUICK), EnvError, "cannot be reached.*agentgym serve-search")


def test_a_server_that_is_silent_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = ClientOptions(timeout_s=0.1, num_tries=2, backoff_s=0.0)
        retriever = RemoteRetriever(f"http://127.0.0.1:{silent.getsockname()[1]}", options)
        ask_both_ways(retriever, EnvTimeoutError, r"did not answer within 0\.1 s")


@pytest.mark.parametrize(
    "reply",
    [
        Reply("<html>"),
        Reply("[]"),
        Reply('{"hits": 7, "document": 7}'),
        Reply('{"hits": [{"doc_id": 1}], "document": {"id": "x"}}'),
        Reply('{"hits": [{"doc_id": 1, "title": "", "snippet": "", "score": 1}], "document": null}'),
        Reply("", 422),
        Reply('{"detail": "validation"}', 422),
        Reply("not found", 404),
        Reply("moved", 302, {"Location": "/elsewhere"}),
        Reply(b"\xff\xfe\x00"),
    ],
    ids=lambda reply: f"{reply.status} {reply.body!r}"[:30],
)
def test_a_server_that_speaks_nonsense_is_no_ones_doing(reply: Reply) -> None:
    with serving(lambda seen: reply) as (url, seen):
        ask_both_ways(RemoteRetriever(url, QUICK), EnvError, "does not answer like a search server")
    assert len(seen) == 2  # nonsense is not asked for again


def test_a_server_that_comes_back_is_asked_again() -> None:
    def answer(seen: Seen) -> Reply:
        attempts.append(seen.path)
        return Reply("busy", 503) if len(attempts) % 2 else Reply('{"hits": []}')

    attempts: list[str] = []
    with serving(answer) as (url, _):
        assert RemoteRetriever(url, QUICK).search("demon", 1) == ()
        assert asyncio.run(RemoteRetriever(url, QUICK).asearch("demon", 1)) == ()
    assert len(attempts) == 4


def test_a_server_that_keeps_failing_is_named() -> None:
    with serving(lambda seen: Reply('{"failure": "EnvError: the index is gone"}', 503)) as (url, seen):
        ask_both_ways(RemoteRetriever(url, QUICK), EnvError, "status 503.*the index is gone")
    assert len(seen) == 4


def test_the_failure_of_a_served_retriever_is_a_failure(
    url: str, local: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(query: str, k: int) -> None:
        raise EnvError("the disk went away")

    monkeypatch.setattr(local, "search", fail)
    ask = RemoteRetriever(url, QUICK)
    with pytest.raises(EnvError, match="the disk went away"):
        ask.search("demon", 1)


class Reader(SearchTools, ToolEnv):
    """Read."""

    def start(self, task: Task) -> str:
        self.reading = Reading()
        return "Read."


@pytest.mark.parametrize(
    ("later", "status"),
    [(Reply("", 500), Status.ENV_ERROR), (Reply("<html>"), Status.ENV_ERROR), (None, Status.TIMEOUT)],
)
def test_a_server_that_fails_in_mid_episode_gives_no_reward(later: Reply | None, status: Status) -> None:
    hold = threading.Event()

    def answer(seen: Seen) -> Reply:
        if json.loads(seen.body)["query"] == "first":
            return Reply('{"hits": []}')
        if later is None:
            hold.wait(20)
        return later or Reply("")

    def calls() -> Iterator[Message]:
        for query in ("first", "second"):
            yield Message("assistant", "", (ToolCall("search", {"query": query}),))

    async def play(url: str) -> Trajectory:
        env = Reader()
        env.retriever = RemoteRetriever(
            url, ClientOptions(timeout_s=0.3 if later is None else 10.0, num_tries=2, backoff_s=0.0)
        )
        messages = calls()
        agent = ScriptedAgent(lambda observation: next(messages))
        request = RolloutRequest(task=Task(id="t", split="train", seed=0), make_agent=lambda *_: agent)
        return await run_episode(env, request)

    with serving(answer) as (url, _):
        trajectory = asyncio.run(play(url))
        hold.set()
    assert trajectory.status is status
    assert (trajectory.reward, trajectory.success) == (None, None)
    assert url in str(trajectory.error)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError):
        ClientOptions(num_tries=0)


# ----------------------------------------------------------------------------------------------------- the command


def command(*words: str, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "agentgym", "serve-search", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "AGENTGYM_CACHE": str(cache)},
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"id": d.id, "title": d.title, "text": d.text}) + "\n" for d in DOCUMENTS))
    return path


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_command_serves_until_it_is_stopped(corpus: Path, tmp_path: Path, workers: str) -> None:
    process = command(str(corpus), "--port", "0", "--json", "--workers", workers, cache=tmp_path / "cache")
    try:
        assert process.stdout is not None
        announced = json.loads(process.stdout.readline())
        assert announced["num_documents"] == len(DOCUMENTS)
        retriever = RemoteRetriever(announced["url"], ClientOptions(timeout_s=30.0))
        assert retriever.search("ziggurat", 1)[0].doc_id == "ur"
        retriever.close()
        process.send_signal(signal.SIGTERM)
        rest, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, rest) == (0, ""), said
    with pytest.raises(httpx.ConnectError):
        httpx.get(announced["url"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/nowhere.jsonl"], "no corpus at /nowhere.jsonl"),
        (["CORPUS", "--backend", "fts4"], "did you mean 'fts5'"),
        (["CORPUS", "--backend", "dense"], "needs an embedder: --model NAME in serve-search"),
    ],
)
def test_the_command_refuses_what_cannot_be(corpus: Path, tmp_path: Path, words: list[str], said: str) -> None:
    words = [str(corpus) if word == "CORPUS" else word for word in words]
    process = command(*words, "--port", "0", cache=tmp_path)
    assert said in process.communicate(timeout=60)[1]
    assert process.returncode == 2


def test_the_command_refuses_a_port_that_is_taken(corpus: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = command(str(corpus), "--port", str(taken.getsockname()[1]), cache=tmp_path)
        assert "choose another by --port" in process.communicate(timeout=60)[1]
    assert process.returncode == 2


def test_fast_calls_run_in_the_event_loop_and_slow_ones_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(inline, "perf_counter", lambda: now)

    def search(seconds: float) -> bool:
        nonlocal now
        now += seconds
        if not seconds:
            raise ToolError("nothing is asked")
        return threading.current_thread() is threading.main_thread()

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as threads:
            call = inline.InlineIfFast(search, threads)
            fast, slow, long = inline.FAST_S / 2, inline.FAST_S * 2, inline.LONG_S * 2

            async def are_inline(seconds: float, count: int) -> list[bool]:
                return [await call(seconds) for _ in range(count)]

            assert await are_inline(fast, 20) == [False] * 16 + [True] * 4
            assert await are_inline(long, 3) == [True, False, False], "one holds up the others"
            assert await are_inline(fast, 17) == [False] * 16 + [True]
            assert await are_inline(slow, 9) == [True] * 8 + [False]
            with pytest.raises(ToolError):
                await call(0.0)
            assert await are_inline(fast, 16) == [False] * 15 + [True], "an error counts by its time"

    asyncio.run(scenario())
