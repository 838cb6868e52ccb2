"""SearchQA over the live web: a real searx instance, recorded and played again."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from testkit.local_servers import Reply, serving

import agentgym
from agentgym import ToolCall
from agentgym.envs.search.linked_pages import rendered_document
from agentgym.errors import AgentGymError, ConfigError, EnvError, UsageError
from agentgym.tools.retrieval.types import Document
from agentgym.tools.web.engines import BraveSearch
from agentgym.tools.web.fetch import Fetcher, FetchOptions

SHARE = Path("/usr/share/python3-searx")
"""Debian's package python3-searx, for Debian's Python."""
PYTHON = "/usr/bin/python3"
DATE = "2026-11-24"
RECORD = {
    "_id": "1",
    "question": "Where does the sister of Lilu live?",
    "answer": "Kur",
    "supporting_facts": [["Lilu", 0]],
    "context": [["Lilu", ["Lilu is the sister of Gallu."]]],
}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def questions(tmp_path: Path) -> str:
    (tmp_path / "questions.json").write_text(json.dumps([RECORD]), encoding="utf-8")
    return str(tmp_path / "questions.json")


def make(questions: str, **options: Any) -> agentgym.Env:
    return agentgym.make("agentgym/SearchQA-v0", questions=questions, **options)


def searched(env: agentgym.Env, query: str) -> str:
    env.reset(options={"task": "1"})
    return env.step({"name": "search", "arguments": {"query": query}})[0][0].text


def test_brave_is_recorded_and_played_again(questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAVE_API_KEY", "k")
    tape = {"cassette": str(tmp_path / "web.jsonl"), "cassette_date": DATE}
    said = {"web": {"results": [{"url": "https://a.example/", "title": "Gallu", "description": "lives in Kur"}]}}
    with serving(lambda seen: Reply(json.dumps(said), headers=JSON)) as (url, seen):
        monkeypatch.setattr("agentgym.tools.web.engines.BraveSearch", lambda: BraveSearch(url=url))
        live = searched(make(questions, engine="brave", **tape), "Lilu")
        assert "Gallu" in live and "https://a.example/" in live and len(seen) == 1
    again = make(questions, engine="cassette", **tape)
    assert searched(again, "Lilu") == live
    with pytest.raises(EnvError, match="holds no answer"):
        searched(again, "Anu")
    (call,) = again.oracle().calls
    assert isinstance(call, ToolCall) and call.name == "search", "the data set's gold passages are not on the web"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "google"}, "searxng"),
        ({"engine": "searxng"}, "engine_url"),
        ({"engine": "cassette"}, "cassette"),
        ({"engine": "brave", "engine_url": "http://a"}, "engine_url"),
        ({"engine": "brave", "cassette": "web.jsonl"}, "cassette_date"),
        ({"engine": "cassette", "cassette": "gone.jsonl", "cassette_date": DATE}, "no cassette"),
        ({"engine": "brave", "cassette": "w.jsonl", "cassette_date": DATE, "cassette_mode": "play"}, "replay"),
        ({"engine": "brave", "retriever": "fts5"}, "leave retriever"),
        ({"cassette": "web.jsonl"}, "need engine"),
        ({"cassette_mode": "replay"}, "need engine"),
        ({"engine": "brave", "cassette_mode": "record"}, "needs cassette"),
    ],
)
def test_options_that_do_not_go_together_are_refused(questions: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AgentGymError, match=message):
        make(questions, **options)


def test_brave_without_its_key(questions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRAVE_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="BRAVE_API_KEY"):
        make(questions, engine="brave")


def test_a_cassette_of_another_date(questions: str, tmp_path: Path) -> None:
    tape = tmp_path / "web.jsonl"
    key = {"engine": "brave", "query": "q", "k": 5, "date": "2025-01-01"}
    tape.write_text(json.dumps({"key": key, "answer": []}) + "\n", encoding="utf-8")
    with pytest.raises(AgentGymError, match="2025-01-01"):
        make(questions, engine="cassette", cassette=str(tape), cassette_date=DATE)


# ------------------------------------------------------------------------------------------------------- a real searx

SETTINGS = """
general: {{debug: false, instance_name: test, enable_stats: false}}
search: {{safe_search: 0, autocomplete: "", default_lang: "", ban_time_on_fail: 0, max_ban_time_on_fail: 0,
          formats: [html, json]}}
server: {{port: {port}, bind_address: "127.0.0.1", secret_key: x, base_url: false, image_proxy: false,
          http_protocol_version: "1.0", method: GET, default_http_headers: {{}}}}
ui: {{static_path: "{share}/static", templates_path: "{share}/templates", default_theme: oscar, default_locale: "",
      theme_args: {{oscar_style: logicodev}}, query_in_title: false}}
outgoing: {{request_timeout: 5.0, useragent_suffix: "", pool_connections: 10, pool_maxsize: 10}}
checker: {{}}
engines:
  - {{name: local, engine: json_engine, shortcut: lo, categories: general, search_url: "{pages}/index?q={{query}}",
      results_query: results, url_query: url, title_query: title, content_query: text, timeout: 5.0, enable_http: true}}
locales: {{en: English}}
doi_resolvers: {{a: "https://a.example/"}}
default_doi_resolver: a
"""


@contextmanager
def searx(folder: Path, pages: str) -> Iterator[str]:
    """Debian's searx, whose only engine is a server of this test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "settings.yml").write_text(SETTINGS.format(port=port, share=SHARE, pages=pages), encoding="utf-8")
    environment = {"SEARX_SETTINGS_PATH": str(folder / "settings.yml"), "PATH": "/usr/bin:/bin"}
    log = (folder / "searx.log").open("wb")
    process = subprocess.Popen([PYTHON, "-m", "searx.webapp"], env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        for _ in range(600):
            assert process.poll() is None, (folder / "searx.log").read_text()
            try:
                httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False)
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        log.close()


@pytest.mark.slow
@pytest.mark.skipif(not SHARE.is_dir(), reason="needs searx: apt-get install --no-install-recommends python3-searx")
def test_a_real_instance_is_searched_read_and_played_again(
    questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_up = [True]

    def site(seen: Any) -> Reply:
        if not seen.path.startswith("/index"):
            return Reply("<title>Gallu</title><p>Gallu, the sister of Lilu, lives in Kur.</p>")
        if not is_up[0]:
            return Reply("broken", 500)
        found = {"url": f"http://{seen.headers['host']}/gallu", "title": "Gallu", "text": "the sister of Lilu"}
        return Reply(json.dumps({"results": [found]}), headers=JSON)

    own = FetchOptions(allow_private=True)  # the page is on this machine
    monkeypatch.setattr("agentgym.tools.web.retriever.Fetcher", lambda: Fetcher(own))
    tape = {"cassette": str(tmp_path / "web.jsonl"), "cassette_date": DATE}

    def episode(env: agentgym.Env, pages: str) -> list[str]:
        texts = [searched(env, "Who is the sister of Lilu?")]
        texts.append(env.step({"name": "open", "arguments": {"doc_id": f"{pages}/gallu"}})[0][0].text)
        observation, reward, terminated, _, info = env.step({"name": "answer", "arguments": {"text": "Kur"}})
        assert terminated and reward == 1.0 and info["success"]
        return [*texts, observation[0].text]

    with serving(site) as (pages, seen), searx(tmp_path, pages) as url:
        env = make(questions, engine="searxng", engine_url=url, **tape)
        live = episode(env, pages)
        assert "lives in Kur" in live[1]
        is_up[0] = False
        with pytest.raises(EnvError, match="no answer from its engines: local"):
            searched(env, "Who is Anu?")
    num_asked = len(seen)
    assert episode(make(questions, engine="cassette", **tape), pages) == live
    assert len(seen) == num_asked


# ------------------------------------------------------------------------------------------------- browsing the web

LINKED = """<html><head><title>Lilu</title></head><body><article>
<p>Lilu is a demon of the night, of whom much is told in old tablets.
The sister is <a href="/gallu">Gallu (of Kur)</a>,
see <a href="#notes">the notes</a> and <a href="mailto:a@b">a friend</a> and
<a href="/gone">a page that is gone</a>.</p>
</article></body></html>"""
GALLU = "<html><title>Gallu</title><p>Gallu, the sister of Lilu, lives in Kur, which lies below.</p></html>"


def browsed(env: agentgym.Env, name: str, **arguments: Any) -> str:
    return env.step({"name": name, "arguments": arguments})[0][0].text


def test_pages_of_the_web_are_browsed_recorded_and_played_again(
    questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def site(seen: Any) -> Reply:
        if seen.path.startswith("/search"):
            found = {"url": f"http://{seen.headers['host']}/lilu", "title": "Lilu", "description": "a demon"}
            return Reply(json.dumps({"web": {"results": [found]}}), headers=JSON)
        pages = {"/lilu": LINKED, "/gallu": GALLU}
        return Reply(pages[seen.path]) if seen.path in pages else Reply("no such page", 404)

    own = FetchOptions(allow_private=True, obey_robots=False)
    monkeypatch.setattr("agentgym.tools.web.retriever.Fetcher", lambda: Fetcher(own))
    monkeypatch.setenv("BRAVE_API_KEY", "k")
    tape = {"cassette": str(tmp_path / "web.jsonl"), "cassette_date": DATE}

    def episode(env: agentgym.Env) -> list[str]:
        observation, _ = env.reset(options={"task": "1"})
        said = [observation[0].text, browsed(env, "search", query="Lilu"), browsed(env, "open", link="1")]
        said.append(browsed(env, "open", link="2"))  # it is gone, and the policy is told
        snapshot = env.snapshot()
        said += [browsed(env, "open", link="1"), browsed(env, "find", text="below"), browsed(env, "back")]
        env.restore(snapshot)
        assert browsed(env, "open", link="1") == said[4]
        _, reward, terminated, _, info = env.step({"name": "answer", "arguments": {"text": "Kur"}})
        assert terminated and reward == 1.0 and info["success"]
        return said

    with serving(site) as (url, seen):
        monkeypatch.setattr(
            "agentgym.tools.web.engines.BraveSearch", lambda: BraveSearch(url=f"{url.rstrip('/')}/search")
        )
        env = agentgym.make("agentgym/WebBrowse-v0", questions=questions, engine="brave", **tape)
        live = episode(env)
        assert "Lilu [1] a demon" in live[1]
        assert "Gallu (of Kur) [1],\nsee the notes and a friend" in live[2] and "gone [2]" in live[2]
        assert "no page at" in live[3]
        assert "lives in Kur" in live[4] and "lies below" in live[5] and live[6] == live[2]
        num_asked = len(seen)
        assert episode(agentgym.make("agentgym/WebBrowse-v0", questions=questions, engine="cassette", **tape)) == live
        assert len(seen) == num_asked


def test_an_address_that_no_page_has_shown_is_not_fetched(
    questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = tmp_path / "web.jsonl"
    tape.write_text("", encoding="utf-8")
    monkeypatch.setenv("BRAVE_API_KEY", "k")
    with serving(lambda seen: Reply(json.dumps({"web": {"results": []}}), headers=JSON)) as (url, seen):
        monkeypatch.setattr("agentgym.tools.web.engines.BraveSearch", lambda: BraveSearch(url=url))
        env = agentgym.make("agentgym/WebBrowse-v0", questions=questions, engine="brave")
        env.reset(options={"task": "1"})
        assert env.oracle().calls[0].name == "search"  # type: ignore[union-attr]
        browsed(env, "search", query="Anu")
        assert "no link" in browsed(env, "open", link=f"{url}/secret") and len(seen) == 1


@pytest.mark.parametrize(
    "link", ["http://[::1", "//[", "<javascript:alert(1)>", "ftp://a.example/", "http://a.example/#x"]
)
def test_links_that_lead_nowhere_stay_words(link: str) -> None:
    page = rendered_document(Document("https://a.example/", "Kur", f"see [this]({link}) and [", "https://a.example/"))
    expected = (link,) if link.endswith("/#x") else ()
    assert page.links == expected and "see this" in page.text


def test_questions_without_a_web_are_refused(questions: str) -> None:
    with pytest.raises(UsageError, match="engine is one of searxng"):
        agentgym.make("agentgym/WebBrowse-v0", questions=questions)
