"""Pages in the web's charsets, as a server sends them: no letter is lost, whatever declares them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from testkit.local_servers import Reply, serving

from agentgym.envs.gui.site import Folder, Request
from agentgym.tools.retrieval.types import adocument
from agentgym.tools.web.engines import SearxNG
from agentgym.tools.web.fetch import Fetcher, FetchOptions
from agentgym.tools.web.retriever import MAX_TAGS, WebRetriever

PAGE = "<!doctype html><html><head>{meta}<title>{title}</title></head><body><article>{text}</article></body></html>"
FRENCH = "Zoë paid 50 € for the “old map”, Émile’s gift – that’s final."
RUSSIAN = "Привет, мир. Это страница на русском языке, и каждая буква важна."
CHINESE = "朱镕基是中国的总理，这是一个简体中文的网页。"
JAPANESE = "これは日本語のページです。文字が化けてはいけません。"

CASES = {
    "gb2312 by a header, letters of GBK": ("text/html; charset=gb2312", "", CHINESE, "gbk"),
    "x-gbk": ("text/html; charset=x-gbk", "", CHINESE, "gbk"),
    "gb18030 in a meta": ("text/html", '<meta charset="gb2312">', CHINESE + "㐀𠀀", "gb18030"),
    "latin-1 means windows-1252": ("text/html; charset=iso-8859-1", "", FRENCH, "cp1252"),
    "ascii means windows-1252": ("text/html; charset=us-ascii", "", FRENCH, "cp1252"),
    "x-sjis": ("text/html; charset=x-sjis", "", JAPANESE + "①", "cp932"),
    "x-cp1251": ("text/html; charset=x-cp1251", "", RUSSIAN, "cp1251"),
    "in quotes": ('text/html; charset="windows-1251"', "", RUSSIAN, "cp1251"),
    "meta alone": ("text/html", '<meta charset="iso-8859-1">', FRENCH, "cp1252"),
    "old meta": ("text/html", '<meta http-equiv=Content-Type content="text/html; charset=koi8-r">', RUSSIAN, "koi8_r"),
    "a meta in a comment": ("text/html", '<!-- <meta charset="koi8-r"> --><meta charset=cp1251>', RUSSIAN, "cp1251"),
    "a meta that lies": ("text/html", '<meta charset="utf-16">', FRENCH, "utf-8"),
    "a mark before all": ("text/html; charset=iso-8859-1", "", FRENCH, "utf-8-sig"),
    "utf-16": ("text/html; charset=utf-16", "", RUSSIAN, "utf-16-le"),
    "none, but utf-8": ("text/html", "", JAPANESE, "utf-8"),
    "none, but windows-1251": ("text/html", "", RUSSIAN * 3, "cp1251"),
    "none, but gbk": ("text/html", "", CHINESE * 3, "gbk"),
    "none, but windows-1252": ("text/html", "", FRENCH, "cp1252"),
    "an unknown label": ("text/html; charset=klingon", '<meta charset="windows-1251">', RUSSIAN, "cp1251"),
    "refused by browsers": ("text/html; charset=hz-gb-2312", "", "这是一个简体中文的网页。", "hz"),
    "no type at all": ("", "<meta charset=shift_jis>", JAPANESE, "cp932"),
}  # fmt: skip


def read(reply: Reply, *, with_links: bool = False) -> str:
    """Open a page of a server as an agent does, and return its text."""
    with serving(lambda seen: reply) as (url, _):
        fetcher = Fetcher(FetchOptions(allow_private=True, obey_robots=False))
        retriever = WebRetriever(SearxNG(url), fetcher)
        if with_links:
            return asyncio.run(retriever.adocument(f"{url}/dir/page.html", with_links=True)).text
        return asyncio.run(adocument(retriever, f"{url}/dir/page.html")).text


@pytest.mark.parametrize(("kind", "meta", "text", "codec"), CASES.values(), ids=list(CASES))
def test_every_letter_arrives(kind: str, meta: str, text: str, codec: str) -> None:
    page = PAGE.format(meta=meta, title="T", text=f"<p>{text}</p>" * 3)
    found = read(Reply(page.encode(codec), headers={"Content-Type": kind} if kind else {}))
    assert text in found


def test_bytes_that_a_charset_lacks_are_marked() -> None:
    found = read(Reply(b"The code is \xff\xfe7.", headers={"Content-Type": "text/plain; charset=utf-8"}))
    assert found == "The code is \ufffd\ufffd7."


def test_a_page_without_a_type_is_no_markup() -> None:
    page = PAGE.format(meta="", title="T", text="<p>Ur is a city of the south.</p>" * 3)
    assert "<p>" not in read(Reply("\n " + page, headers={}))
    assert read(Reply("if a <b or b> c: pass", headers={})) == "if a <b or b> c: pass"


def test_a_page_that_is_cut_says_so() -> None:
    rows = "".join(f"<p><b>n{number}</b> is a number.</p>" for number in range(MAX_TAGS // 3))
    found = read(Reply(PAGE.format(meta="", title="T", text=rows)))
    assert "n0 " in found and f"n{MAX_TAGS // 3 - 1}" not in found
    assert found.splitlines()[-1].startswith("[cut: the page goes on after ")
    assert "[cut" not in read(Reply(PAGE.format(meta="", title="T", text="<p>Ur is a city of the south.</p>" * 9)))


@pytest.mark.parametrize(
    ("base", "link"),
    [
        ("http://other.example/dir/", "http://other.example/dir/b.html"),
        ("../up/", "/up/b.html"),
        ("javascript:0", "/dir/b.html"),
        ("http://[", "/dir/b.html"),
    ],
)
def test_links_are_relative_to_the_base_of_a_page(base: str, link: str) -> None:
    text = "<p>Read <a href='b.html'>the second part</a> of the story of Ur and its kings.</p>" * 4
    found = read(Reply(PAGE.format(meta=f'<base href="{base}">', title="T", text=text)), with_links=True)
    assert f"{link})" in found


@pytest.mark.parametrize(
    ("name", "body", "kind"),
    [
        ("own.html", '<meta charset="windows-1251">Привет'.encode("cp1251"), "text/html"),
        ("plain.html", "<p>Zoë</p>".encode(), "text/html; charset=utf-8"),
        ("old.txt", "Zoë".encode("cp1252"), "text/plain"),
        ("a.css", "a::after { content: '→' }".encode(), "text/css; charset=utf-8"),
    ],
)
def test_a_folder_claims_utf_8_for_what_is_utf_8(tmp_path: Path, name: str, body: bytes, kind: str) -> None:
    (tmp_path / name).write_bytes(body)
    answer = asyncio.run(Folder(tmp_path).answer(Request(method="GET", url=f"http://a.localhost/{name}")))
    assert (answer.content_type, answer.body) == (kind, body)
