"""Character sets of documents, as browsers read them: the Encoding Standard's labels, and HTML's order of evidence.

Sources: https://encoding.spec.whatwg.org/#names-and-labels, by the package webencodings;
https://html.spec.whatwg.org/multipage/parsing.html#determining-the-character-encoding.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

from agentgym.errors import require_extra

_HEAD_BYTES: Final = 1 << 15
"""Bytes of a document in which it may declare its charset. Browsers promise 1,024 and read on in the head."""
_BOMS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_DECLARATION: Final = re.compile(
    rb"""<meta\s[^>]*?charset\s*=\s*["']?\s*([^\s"'/>;]+)|^\s*<\?xml\s[^>]*?encoding\s*=\s*["']([^"']+)""",
    re.IGNORECASE,
)
_COMMENT: Final = re.compile(rb"<!--.*?-->", re.DOTALL)
_GUESSED: Final = (
    "cp1252", "cp1251", "cp1250", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874", "koi8_r",
    "gb18030", "big5hkscs", "cp932", "euc_jp", "iso2022_jp", "cp949",
)  # fmt: skip
"""Codecs that detection chooses from: those of the web, so that no code page of an old terminal is guessed."""


def declared_charset(html: bytes) -> str:
    """Return the label that a document declares itself, by ``<meta>`` or an XML declaration; empty if none.

    Example:
        >>> declared_charset(b'<!doctype html><meta charset="windows-1251"><title>'), declared_charset(b"<p>charset=x")
        ('windows-1251', '')
    """
    found = _DECLARATION.search(_COMMENT.sub(b"", html[:_HEAD_BYTES]))
    return "" if found is None else (found[1] or found[2]).decode("ascii", errors="replace").strip()


def decoded(body: bytes, header: str = "", *, is_html: bool = True) -> str:
    """Decode a document by its byte order mark, its header, its own declaration, or detection, in this order.

    Bytes that the charset lacks become U+FFFD.

    Args:
        header: label of the charset in the response's ``Content-Type``.
        is_html: look for a declaration in the document.

    Raises:
        MissingExtraError: webencodings or charset-normalizer is not installed.

    Example:
        >>> decoded(bytes.fromhex("d6ece946bbf9"), "gb2312"), decoded(b"\\x8050", "iso-8859-1")
        ('朱镕基', '€50')
    """
    for mark, codec in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(codec, errors="replace")
    codec = codec_of(header) or (_declared_codec(body) if is_html else "") or _detected_codec(body)
    return body.decode(codec, errors="replace")


def codec_of(label: str) -> str:
    """Return Python's codec for a label of the web; empty if the label is unknown.

    Raises:
        MissingExtraError: webencodings is not installed.

    Example:
        >>> codec_of("GB2312"), codec_of("latin1"), codec_of("x-sjis"), codec_of("hz-gb-2312"), codec_of("klingon")
        ('gb18030', 'cp1252', 'cp932', 'hz', '')
    """
    require_extra("the charset of a web page", "search", "webencodings")
    import webencodings

    found = webencodings.lookup(label)
    if found is None:
        return ""
    if found.name == "replacement":  # what browsers refuse to read for the sake of scripts, which nobody runs here
        try:
            return codecs.lookup(label).name
        except LookupError:
            return ""
    return "gb18030" if found.name == "gbk" else found.codec_info.name  # the standard decodes both alike


def _declared_codec(html: bytes) -> str:
    codec = codec_of(declared_charset(html))
    # a document in which the declaration could be read as ASCII is none in UTF-16, says the standard
    return "utf-8" if codec.startswith("utf-16") else codec


def _detected_codec(body: bytes) -> str:
    try:
        body.decode()
    except UnicodeDecodeError:
        require_extra("detecting a charset", "search", "charset_normalizer")
        import charset_normalizer

        found = charset_normalizer.from_bytes(body, cp_isolation=list(_GUESSED)).best()
        return "cp1252" if found is None else found.encoding
    return "utf-8"
