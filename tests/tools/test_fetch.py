"""Pages of the web, from servers on this machine: what is read, what is refused, and where nothing is sent."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from testkit.local_servers import Reply, Seen, serving

from agentgym.errors import EnvError, ToolError
from agentgym.tools.web import fetch as fetch_module
from agentgym.tools.web.fetch import PORTS, Fetcher, FetchOptions, Page, address_of, is_public, parsed_url
from agentgym.tools.web.retriever import readable_document

HERE = FetchOptions(allow_private=True, timeout_s=5.0, max_bytes=100_000)

ARTICLE = (
    "<html><head><title>The ziggurat of Ur</title></head><body><nav><a href='/'>Home</a></nav><article><h1>The ziggurat"
    " of Ur</h1>" + "<p>The ziggurat was built by King Ur-Nammu in the 21st century BC, and was restored later.</p>" * 8
    + "</article><script>track()</script></body></html>"
)  # fmt: skip


def fetched(url: str, options: FetchOptions = HERE) -> Page:
    return asyncio.run(Fetcher(options).fetch(url))


def refused(url: str, options: FetchOptions = HERE) -> str:
    with pytest.raises(ToolError) as raised:
        fetched(url, options)
    return raised.value.error_type


def pages(**by_path: Reply) -> Any:
    """Answers by the path's last word; robots.txt is not there unless given."""
    return lambda seen: by_path.get(seen.path.strip("/").partition(".")[0].partition("?")[0], Reply("none", 404))


def test_a_page_is_read_as_a_person_would() -> None:
    with serving(pages(ur=Reply(ARTICLE))) as (url, seen):
        document = readable_document(fetched(f"{url}/ur"), f"{url}/ur")
    assert document.title == "The ziggurat of Ur"
    assert "built by King Ur-Nammu" in document.text
    assert "track" not in document.text and "Home" not in document.text
    assert [request.path for request in seen] == ["/robots.txt", "/ur"]
    assert seen[1].headers["user-agent"] == "agentgym"


def test_text_and_charsets() -> None:
    latin = Reply("Käse".encode("latin-1"), headers={"Content-Type": "text/plain; charset=ISO-8859-1"})
    unknown = Reply("plain", headers={"Content-Type": "text/plain; charset=klingon"})
    packed = Reply(gzip.compress(b"packed"), headers={"Content-Type": "text/plain", "Content-Encoding": "gzip"})
    with serving(pages(latin=latin, unknown=unknown, packed=packed)) as (url, _):
        assert readable_document(fetched(f"{url}/latin"), "d").text == "Käse"
        assert readable_document(fetched(f"{url}/unknown"), "d").text == "plain"
        assert readable_document(fetched(f"{url}/packed"), "d").text == "packed"


def test_a_page_without_text_says_so() -> None:
    with serving(pages(empty=Reply("<html><body></body></html>"))) as (url, _):
        with pytest.raises(ToolError, match="no readable text"):
            readable_document(fetched(f"{url}/empty"), "d")


def test_what_cannot_be_read_is_an_answer_to_the_agent() -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    replies = {
        "gone": Reply("", 410),
        "broken": Reply("", 500),
        "pdf": Reply(b"%PDF", headers={"Content-Type": "application/pdf"}),
        "large": Reply(b"x" * 200_000),
        "bomb": Reply(bomb, headers={"Content-Type": "text/html", "Content-Encoding": "gzip"}),
        "odd": Reply(b"x", headers={"Content-Type": "text/html", "Content-Encoding": "br"}),
        "lies": Reply(b"no gzip", headers={"Content-Type": "text/html", "Content-Encoding": "gzip"}),
        "loop": Reply("", 302, {"Location": "/loop"}),
    }
    expected = {
        "gone": "page_not_found", "none": "page_not_found", "broken": "page_unavailable", "pdf": "unreadable_page",
        "large": "page_too_large", "bomb": "page_too_large", "odd": "unreadable_page", "lies": "page_unavailable",
        "loop": "page_unavailable",
    }  # fmt: skip
    with serving(pages(**replies)) as (url, _):
        assert {name: refused(f"{url}/{name}") for name in expected} == expected
    assert refused(url) == "page_unavailable"  # nobody listens any more


def test_a_slow_page_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        options = FetchOptions(allow_private=True, timeout_s=0.2, obey_robots=False)
        assert refused(f"http://127.0.0.1:{silent.getsockname()[1]}/", options) == "page_unavailable"


def test_robots_are_obeyed() -> None:
    rules = Reply("User-agent: agentgym\nDisallow: /private\n", headers={"Content-Type": "text/plain"})
    replies = {"robots": rules, "private": Reply(ARTICLE), "open": Reply(ARTICLE)}
    with serving(pages(**replies)) as (url, seen):
        assert refused(f"{url}/private") == "forbidden_by_robots"
        assert [request.path for request in seen] == ["/robots.txt"]
        assert fetched(f"{url}/open").body
        assert fetched(f"{url}/private", FetchOptions(allow_private=True, obey_robots=False)).body
    with serving(pages(robots=Reply("", 500), open=Reply(ARTICLE))) as (url, _):
        assert refused(f"{url}/open") == "forbidden_by_robots"  # RFC 9309 takes that as no


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://example.org",
        "file:///etc/passwd",
        "example.org",
        "http://",
        "http://user:pw@example.org/",
        "http://[::1",
        "javascript:alert(1)",
        "http://a\0b/",
        "x" * 100_000,
        "http://\ud800/",
    ],
)
def test_what_is_no_page_is_refused(url: str) -> None:
    assert refused(url) in ("bad_url", "no_such_host")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "0.0.0.0",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "2130706433",
        "0x7f.1",
        "[::ffff:127.0.0.1]",
        "[fe80::1]",
        "[fd00::1]",
        "224.0.0.1",
    ],
)
def test_nothing_is_sent_to_this_machine_or_its_network(host: str) -> None:
    assert refused(f"http://{host}/", FetchOptions(timeout_s=5.0)) in ("refused_address", "no_such_host")


@pytest.mark.parametrize("address", ["64:ff9b::7f00:1", "2002:7f00:1::", "240.0.0.1", "::", "fe80::1%eth0"])
def test_addresses_that_hide_others_are_not_public(address: str) -> None:
    assert not is_public(address)
    assert is_public("2606:4700::6810:84e5")


def test_other_ports_are_refused() -> None:
    assert refused("http://example.org:22/", FetchOptions(obey_robots=False)) == "refused_address"


@pytest.fixture
def one_public_name(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name public.example leads to this machine as if that were public; all others are looked up and checked."""
    looked_up: list[str] = []

    async def resolve(host: str, port: int, *, allow_private: bool = False) -> str:
        looked_up.append(host)
        return "127.0.0.1" if host == "public.example" else await address_of(host, port, allow_private=allow_private)

    monkeypatch.setattr(fetch_module, "address_of", resolve)
    return looked_up


def test_every_hop_of_a_redirect_is_checked(one_public_name: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(seen: Seen) -> Reply:
        if seen.path == "/robots.txt":
            return Reply("", 404)
        targets = {"/away": "http://127.0.0.1/secret", "/file": "file:///etc/passwd", "/on": "/secret"}
        return Reply("", 302, {"Location": targets[seen.path]}) if seen.path in targets else Reply(ARTICLE)

    with serving(answer) as (url, seen):
        monkeypatch.setitem(PORTS, "http", urlsplit(url).port or 0)
        options = FetchOptions(timeout_s=5.0)
        assert fetched("http://public.example/on", options).url == "http://public.example/secret"
        assert seen[-1].headers["host"] == "public.example"  # by name, though the connection is to an address
        seen.clear()
        assert refused("http://public.example/away", options) == "refused_address"
        assert refused("http://public.example/file", options) == "bad_url"
        assert "/secret" not in [request.path for request in seen]


def test_robots_cannot_lead_astray(one_public_name: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda seen: Reply("", 302, {"Location": "http://127.0.0.1/metadata"})) as (url, seen):
        monkeypatch.setitem(PORTS, "http", urlsplit(url).port or 0)
        assert refused("http://public.example/a", FetchOptions(timeout_s=5.0)) == "refused_address"
        assert [request.path for request in seen] == ["/robots.txt"]


def test_a_name_is_looked_up_once_a_hop(one_public_name: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(pages(a=Reply(ARTICLE))) as (url, _):
        monkeypatch.setitem(PORTS, "http", urlsplit(url).port or 0)
        fetched("http://public.example/a", FetchOptions(timeout_s=5.0, obey_robots=False))
    assert one_public_name == ["public.example"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate by openssl")
def test_certificates_are_of_the_name_not_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=public.example"]
    command += ["-addext", "subjectAltName=DNS:public.example", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate, key)
    trusted = ssl.create_default_context(cafile=certificate)

    async def here(host: str, port: int, *, allow_private: bool = False) -> str:
        return "127.0.0.1"

    monkeypatch.setattr(fetch_module, "address_of", here)
    monkeypatch.setattr(fetch_module, "ssl_context", lambda: trusted)
    with serving(pages(a=Reply(ARTICLE)), server_side) as (url, seen):
        monkeypatch.setitem(PORTS, "https", urlsplit(url).port or 0)
        options = FetchOptions(timeout_s=5.0, obey_robots=False)
        assert fetched("https://public.example/a", options).url == "https://public.example/a"
        assert refused("https://other.example/a", options) == "page_unavailable"
        assert len(seen) == 1


def test_names_that_cannot_be_looked_up_now_are_no_ones_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(EnvError, match="is there a network"):
        fetched("http://example.org/", FetchOptions())


def test_urls_are_parsed_once() -> None:
    assert parsed_url("http://Example.ORG:80/a#b").host == "example.org"
    with pytest.raises(ToolError):
        parsed_url("http://public.example\\@127.0.0.1/")
