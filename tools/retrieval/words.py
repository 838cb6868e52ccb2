"""Search words of a query, and snippets of documents that show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from agentgym.errors import ToolError

MAX_QUERY_CHARS = 4000
"""Most characters of a query that are read; the rest is ignored."""
MAX_QUERY_WORDS = 64
"""Most distinct words of a query that are looked up."""
MAX_COMMON_SHARE = 0.1
"""Largest share of documents that a search word may occur in. More frequent words are expensive and carry little
information, so they are used only if there are no others."""

_STOP_WORDS = """
    a about am an and are as at be been but by can could did do does for from had has have he her his how i if
    in into is it its me my no not of on or our she should so such than that the their them then there these
    they this those to was we were what when where which who whom whose why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""English function and question words, which occur in nearly every document."""

_WORD = re.compile(r"[^\W_]+")


def query_words(query: str) -> tuple[str, ...]:
    """Return the distinct words of a query in lower case, without stop words unless there are no others.

    Operators of a search engine's query language are treated as ordinary words, so a query is never executed.

    Raises:
        ToolError: of type ``invalid_query``, if the query contains no word.

    Example:
        >>> query_words('Who is "Lilu" OR NEAR(x)?')
        ('lilu', 'near', 'x')
        >>> query_words("Who is it?")
        ('who', 'is', 'it')
    """
    found = dict.fromkeys(_WORD.findall(readable_query(query).lower()))
    if not found:
        raise ToolError("there is no word to look for in the query; use letters or digits", "invalid_query")
    telling = [word for word in found if word not in STOP_WORDS]
    return tuple((telling or list(found))[:MAX_QUERY_WORDS])


def telling_words(counts: Mapping[str, int], num_documents: int) -> list[str]:
    """Return the words of a query that are rare enough to be informative, the rarest first.

    Args:
        counts: number of documents that contain each word of the query.
        num_documents: number of documents in the corpus.

    Example:
        >>> telling_words({"city": 30, "lilu": 1, "gallu": 0, "demon": 3}, num_documents=100)
        ['lilu', 'demon']
        >>> telling_words({"city": 30}, num_documents=100)
        ['city']
    """
    known = sorted((word for word, count in counts.items() if count), key=lambda word: counts[word])
    return [word for word in known if counts[word] <= MAX_COMMON_SHARE * num_documents] or known


def readable_query(query: str) -> str:
    """Return the part of a query that is read, as text that UTF-8 can encode.

    Example:
        >>> readable_query("half a pair: \\ud800")
        'half a pair: ?'
    """
    return query[:MAX_QUERY_CHARS].encode(errors="replace").decode()


# ------------------------------------------------------------------------------ snippets of documents in results

SNIPPET_CHARS = 320
"""Longest snippet in characters. That is about 80 tokens of English, at the usual estimate of four characters per
token; retrievers have no tokenizer."""


def snippet_of(text: str, terms: Iterable[str], max_chars: int = SNIPPET_CHARS) -> str:
    """Return the window of a text with the most distinct terms, cut at words, with an ellipsis at each cut.

    Args:
        text: the text of the document.
        terms: words in lower case; the window begins shortly before the first occurrence of one.
        max_chars: longest window in characters, without the ellipses.

    Example:
        >>> snippet_of("one two three four five six seven", ["five"], max_chars=16)
        '… five six …'
    """
    if len(text) <= max_chars:
        return " ".join(text.split())
    first = _best_place(text.lower(), tuple(terms), max_chars)
    first = max(0, min(first - max_chars // 3, len(text) - max_chars))
    last = first + max_chars
    if first > 0:
        first = text.find(" ", first, last) + 1 or first
    if last < len(text):
        cut = text.rfind(" ", first, last + 1)
        last = cut if cut > first else last
    shown = " ".join(text[first:last].split())
    return ("… " if first else "") + shown + (" …" if last < len(text) else "")


def _best_place(lowered: str, terms: tuple[str, ...], max_chars: int) -> int:
    places = sorted(place for term in terms if (place := lowered.find(term)) >= 0)
    reach = max_chars * 2 // 3  # share of the window after the first occurrence
    best, most, end = places[0] if places else 0, 0, 0
    for at, place in enumerate(places):
        while end < len(places) and places[end] < place + reach:
            end += 1
        if end - at > most:
            best, most = place, end - at
    return best
