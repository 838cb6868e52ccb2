"""The text of a page that a person would read; the extra ``search``."""

from __future__ import annotations

from itertools import islice
from re import finditer
from typing import Final

from agentgym.errors import MissingExtraError, ToolError
from agentgym.tools.retrieval.types import Document
from agentgym.tools.web.fetch import Page

MAX_TAGS: Final = 30_000
"""Tags of a page that are read, the rest is left out: some pages take milliseconds for each of them."""


def readable_document(page: Page, doc_id: str, *, with_links: bool = False) -> Document:
    """Return a page without navigation, advertisements and markup, by trafilatura.

    Args:
        doc_id: the URL it was asked for by.
        with_links: keep links as Markdown writes them, ``[words](address)`` or ``[words](<address>)``.

    Raises:
        ToolError: type ``unreadable_page``, if there is no text in it.
        MissingExtraError: trafilatura is not installed.
    """
    if page.content_type == "text/plain":
        return Document(doc_id, page.url, _decoded(page.body, page.charset), page.url)
    try:
        import trafilatura
    except ImportError:
        raise MissingExtraError("reading web pages", "search") from None
    body = page.body[: _end_of_tags(page.body)]
    html = _decoded(body, page.charset) if page.charset else body  # without a declared charset it looks for one itself
    found = trafilatura.bare_extraction(
        html, url=page.url, with_metadata=True, include_comments=False, include_links=with_links
    )
    if found is None or isinstance(found, dict) or not found.text:
        raise ToolError(f"{page.url[:200]} holds no readable text", "unreadable_page")
    return Document(doc_id, found.title or page.url, found.text, page.url)


def _end_of_tags(body: bytes) -> int:
    """Return where the first tag begins that is not read."""
    return next((tag.start() for tag in islice(finditer(b"<", body), MAX_TAGS, None)), len(body))


def _decoded(body: bytes, charset: str) -> str:
    try:
        return body.decode(charset or "utf-8", errors="replace")
    except LookupError:  # a charset nobody knows
        return body.decode(errors="replace")
