"""Engines and the cassette: what is asked, what is kept, and what a replay says when it lacks an answer."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from testkit.local_servers import Reply, Seen, serving

from agentgym.errors import ConfigError, EnvError, EnvTimeoutError, ToolError, UsageError
from agentgym.tools.retrieval.types import Hit, Retriever, adocument, asearch
from agentgym.tools.web import retriever
from agentgym.tools.web.cassette import Cassette, CassetteMissError, CassetteMode
from agentgym.tools.web.engines import BRAVE_KEY, BraveSearch, SearxNG
from agentgym.tools.web.fetch import Fetcher, FetchOptions, Page
from agentgym.tools.web.retriever import MAX_TAGS, WebRetriever, readable_document

JSON = {"Content-Type": "application/json"}
SEARXNG = {
    "results": [
        {"url": None, "title": "Ur is a city", "content": "A box with an answer."},
        {"url": "https://a.example/", "title": "Ur &amp; Uruk", "content": "Two <b>cities</b>.", "engine": "x"},
        {"url": "https://b.example/", "title": None, "content": None},
        {"url": "https://c.example/", "title": "C"},
    ]
}
BRAVE = {"web": {"results": [{"url": "https://a.example/", "title": "Ur", "description": "A <strong>city</strong>."}]}}


def searched(engine: Any, query: str = "ur", k: int = 3) -> tuple[Hit, ...]:
    found: tuple[Hit, ...] = asyncio.run(engine.search(query, k))
    return found


# -------------------------------------------------------------------------------------------------------- engines


def test_searxng_is_asked_for_json() -> None:
    with serving(lambda seen: Reply(json.dumps(SEARXNG), headers=JSON)) as (url, seen):
        hits = searched(SearxNG(url + "/"), "cities & kings?", 2)
    assert hits == (
        Hit("https://a.example/", "Ur & Uruk", "Two cities.", 1.0),
        Hit("https://b.example/", "", "", 0.5),
    )
    asked = urlsplit(seen[0].path)
    assert (asked.path, parse_qs(asked.query)) == ("/search", {"q": ["cities & kings?"], "format": ["json"]})


def test_brave_is_asked_with_the_key_and_the_key_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(BRAVE_KEY, "very-secret")
    with caplog.at_level(logging.DEBUG), serving(lambda seen: Reply(json.dumps(BRAVE), headers=JSON)) as (url, seen):
        engine = BraveSearch(url=url)
        assert searched(engine, k=50) == (Hit("https://a.example/", "Ur", "A city.", 1.0),)
        assert seen[0].headers["x-subscription-token"] == "very-secret"
        assert parse_qs(urlsplit(seen[0].path).query) == {"q": ["ur"], "count": ["20"]}
    with caplog.at_level(logging.DEBUG), serving(lambda seen: Reply("bad very-secret", 401)) as (url, _):
        with pytest.raises(EnvError, match="the key is wrong") as raised:
            searched(BraveSearch(url=url))
    assert "very-secret" not in f"{raised.value} {raised.value.__cause__} {engine!r} {caplog.text}"


def test_brave_needs_a_key_and_takes_no_essay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BRAVE_KEY, raising=False)
    with pytest.raises(ConfigError, match=BRAVE_KEY):
        BraveSearch()
    monkeypatch.setenv(BRAVE_KEY, "k")
    for query in ("word " * 51, "w" * 401):
        with pytest.raises(ToolError, match="too long"):
            searched(BraveSearch(url="http://127.0.0.1:9"), query)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply("<html>"), "invalid JSON"),
        (Reply("[]"), "unexpected structure"),
        (Reply('{"results": [{"title": "no url"}]}'), "unexpected structure"),
        (Reply('{"results": 7}'), "unexpected structure"),
        (Reply("", 403), "do not allow the format json"),
        (Reply("", 429), "too many queries"),
        (Reply("", 500), "status 500"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_engine_that_fails_is_no_ones_doing(reply: Reply, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym.tools.web.engines.BACKOFF_S", 0.0)
    with serving(lambda seen: reply) as (url, _):
        with pytest.raises(EnvError, match=words):
            searched(SearxNG(url))


def test_an_engine_that_is_gone_or_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym.tools.web.engines.BACKOFF_S", 0.0)
    with pytest.raises(EnvError, match=r"at http://127\.0\.0\.1:9/search cannot be reached"):
        searched(SearxNG("http://127.0.0.1:9"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = SearxNG(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1, num_tries=1)
        with pytest.raises(EnvTimeoutError, match="did not answer"):
            searched(engine)


def test_a_query_without_a_word_is_not_sent() -> None:
    with pytest.raises(ToolError, match="no word"):
        searched(SearxNG("http://127.0.0.1:9"), "??")


# ------------------------------------------------------------------------------------------------------- cassettes


class Web:
    """Answers that differ each time, as the web's do."""

    def __init__(self) -> None:
        self.num_asked = 0

    async def __call__(self) -> Any:
        self.num_asked += 1
        return {"answer": self.num_asked}


def played(cassette: Cassette, ask: Callable[[], Awaitable[Any]], query: str = "ur", k: int = 3) -> Any:
    return asyncio.run(cassette.answer("searxng", query, k, ask))


def test_what_was_recorded_is_played_again(tmp_path: Path) -> None:
    web, path = Web(), tmp_path / "deep" / "cassette.jsonl"
    auto = Cassette(path, "auto", date="2026-11-21")
    assert [played(auto, web), played(auto, web)] == [{"answer": 1}] * 2
    assert played(auto, web, k=5) == {"answer": 2}  # another key
    assert played(Cassette(path, "auto", date="2026-11-22"), web) == {"answer": 3}  # another day
    replay = Cassette(path, CassetteMode.REPLAY, date="2026-11-21")
    assert played(replay, web) == {"answer": 1}
    assert web.num_asked == 3
    assert len(path.read_text().splitlines()) == 3


def test_a_replay_that_lacks_an_answer_names_file_and_key(tmp_path: Path) -> None:
    path = tmp_path / "cassette.jsonl"
    played(Cassette(path, date="d1"), Web())
    with pytest.raises(CassetteMissError, match=r"cassette\.jsonl holds no answer for .*'query': 'uruk'.*'date': 'd1'"):
        played(Cassette(path, "replay", date="d1"), Web(), query="uruk")
    assert issubclass(CassetteMissError, EnvError)
    with pytest.raises(UsageError, match="to replay"):
        Cassette(tmp_path / "none", "replay", date="d1")
    with pytest.raises(UsageError, match="needs a date"):
        Cassette(path, date="")


def test_recording_again_renews(tmp_path: Path) -> None:
    web, path = Web(), tmp_path / "cassette.jsonl"
    for _ in range(2):
        played(Cassette(path, "record", date="d"), web)
    assert played(Cassette(path, "replay", date="d"), web) == {"answer": 2}


def test_refusals_are_recorded_and_failures_are_not(tmp_path: Path) -> None:
    async def refuse() -> Any:
        raise ToolError("there is no page", "page_not_found")

    async def fail() -> Any:
        raise EnvError("no network")

    cassette = Cassette(tmp_path / "cassette.jsonl", date="d")
    with pytest.raises(EnvError, match="no network"):
        played(cassette, fail)
    for ask in (refuse, fail):
        with pytest.raises(ToolError, match="there is no page") as raised:
            played(cassette, ask)
        assert raised.value.error_type == "page_not_found"


def test_half_a_line_of_a_killed_writer_loses_that_answer_alone(tmp_path: Path) -> None:
    path = tmp_path / "cassette.jsonl"
    played(Cassette(path, date="d"), Web(), query="one")
    with path.open("a") as file:
        file.write('{"key": {"engine": "searxng", "query": "half')
    played(Cassette(path, date="d"), Web(), query="two")
    replay = Cassette(path, "replay", date="d")
    assert [played(replay, Web(), query=query) for query in ("one", "two")] == [{"answer": 1}] * 2
    with pytest.raises(CassetteMissError):
        played(replay, Web(), query="half")


WRITER = """
import asyncio, sys
from agentgym.tools.web.cassette import Cassette

async def ask():
    return "x" * 20_000 + sys.argv[2]

cassette = Cassette(sys.argv[1], date="d")
for number in range(40):
    answer = asyncio.run(cassette.answer("engine", f"query {number}", 3, ask))
    print(number, answer[-1])
"""


def test_processes_that_record_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "cassette.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], stdout=subprocess.PIPE, text=True)
        for name in "abc"
    ]
    said = [writer.communicate(timeout=120)[0] for writer in writers]
    assert said[0] == said[1] == said[2] != ""
    lines = path.read_text().splitlines()
    assert sorted(json.loads(line)["key"]["query"] for line in lines) == sorted(f"query {n}" for n in range(40))


# ------------------------------------------------------------------------------------------------------ together


def test_the_web_is_a_retriever_that_can_be_played_again(tmp_path: Path) -> None:
    page = "<html><title>Ur</title><body><article>" + "<p>Ur was a city in Sumer, near Eridu.</p>" * 9 + "</article>"

    def answer(seen: Seen) -> Reply:
        if seen.path.startswith("/search"):
            results = [{"url": f"http://{seen.headers['host']}/ur", "title": "Ur", "content": "A city."}]
            return Reply(json.dumps({"results": results}), headers=JSON)
        return Reply(page) if seen.path == "/ur" else Reply("", 404)

    def web(url: str, mode: str) -> Retriever:
        fetcher = Fetcher(FetchOptions(allow_private=True, timeout_s=5.0))
        return WebRetriever(SearxNG(url), fetcher, Cassette(tmp_path / "cassette.jsonl", mode, date="d"))

    with serving(answer) as (url, _):
        live = web(url, "auto")
        (hit,) = live.search("ur", 3)
        document = live.document(hit.doc_id)
        with pytest.raises(ToolError, match="no page"):
            live.document(f"{url}/gone")
    assert (document.title, document.id, document.url) == ("Ur", f"{url}/ur", f"{url}/ur")
    assert "near Eridu" in document.text

    async def again() -> None:
        replay = web(url, "replay")  # the server is gone
        assert await asearch(replay, "ur", 3) == (hit,)
        assert await adocument(replay, hit.doc_id) == document
        assert replay.search("ur", 3) == (hit,)  # also where a loop runs
        with pytest.raises(ToolError, match="no page"):
            await adocument(replay, f"{url}/gone")
        with pytest.raises(CassetteMissError):
            await asearch(replay, "eridu", 3)

    asyncio.run(again())


# ---------------------------------------------------------------------------------------------------- hostile pages


def test_of_a_page_of_countless_tags_the_beginning_is_read() -> None:
    text = "".join(f"<p>Paragraph {number} tells of cities.</p>" for number in range(MAX_TAGS))
    found = readable_document(Page("https://a.example/", "text/html", "utf-8", text.encode()), "1").text
    assert "Paragraph 0 " in found and f"Paragraph {MAX_TAGS // 2 - 1} " in found
    assert f"Paragraph {MAX_TAGS // 2} " not in found


def test_a_page_that_takes_too_long_to_read_is_an_answer_to_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(retriever, "READING_TIMEOUT_S", 0.05)
    monkeypatch.setattr(retriever, "readable_document", lambda *_, **__: let_go.wait(20))
    with serving(lambda seen: Reply("<p>Cities.</p>")) as (url, _):
        fetcher = Fetcher(FetchOptions(allow_private=True, obey_robots=False))
        opened = adocument(WebRetriever(SearxNG(url), fetcher), url)
        with pytest.raises(ToolError, match="to read"):
            asyncio.run(_then(opened, let_go))


async def _then(opened: Awaitable[object], let_go: threading.Event) -> None:
    try:
        await opened
    finally:
        let_go.set()
