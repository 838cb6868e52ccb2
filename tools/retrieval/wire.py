"""Messages between search servers and their clients, as JSON."""

from __future__ import annotations

from typing import Any

from agentgym.errors import ToolError
from agentgym.tools.retrieval.types import Document, Hit

POLICY_STATUS = 422
"""HTTP status of a policy's mistake; the body is ``{"error": {"type", "message"}}``."""
DEFAULT_TOPK = 3


MAX_TEXT = 200_000
"""Most characters of a query or an id."""


def checked_text(text: str) -> str:
    """Return a query or an id after checking its length.

    Raises:
        ToolError: the text is too long, which is a mistake of the policy.
    """
    if len(text) > MAX_TEXT:
        raise ToolError(f"a query or an id has at most {MAX_TEXT:,} characters, got {len(text):,}", "too_long")
    return text


def hits_from_json(body: Any) -> tuple[Hit, ...]:
    """Parse ``{"hits": [...]}``.

    Raises:
        ValueError, TypeError, KeyError: it is something else.

    Example:
        >>> hits_from_json({"hits": [{"doc_id": "7", "title": "Lilu", "snippet": "", "score": 1}]})
        (Hit(doc_id='7', title='Lilu', snippet='', score=1.0),)
    """
    return tuple(
        Hit(_text(hit["doc_id"]), _text(hit["title"]), _text(hit["snippet"]), float(hit["score"]))
        for hit in body["hits"]
    )


def json_of(hit: Hit) -> dict[str, str | float]:
    """Return what :func:`hits_from_json` reads."""
    return {"doc_id": hit.doc_id, "title": hit.title, "snippet": hit.snippet, "score": hit.score}


def document_from_json(body: Any) -> Document:
    """Parse ``{"document": {...}}``.

    Raises:
        ValueError, TypeError, KeyError: it is something else.
    """
    fields = body["document"]
    return Document(*(_text(fields[name]) for name in ("id", "title", "text", "url")))


def policy_error_from_json(body: Any) -> ToolError:
    """Parse ``{"error": {"type", "message"}}``.

    Raises:
        ValueError, TypeError, KeyError: it is something else.
    """
    return ToolError(_text(body["error"]["message"]), _text(body["error"]["type"]))


def contents_of(document: Document) -> dict[str, str]:
    """Return a document in Search-R1's format: title in quotation marks, line break, text.

    Example:
        >>> contents_of(Document("7", "Lilu", "A demon."))
        {'id': '7', 'contents': '"Lilu"\\nA demon.'}
    """
    return {"id": document.id, "contents": f'"{document.title}"\n{document.text}'}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    return value
