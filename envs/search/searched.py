"""The retriever that an environment's option names, opened once in a process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from agentgym.tools.retrieval.memory import MemoryRetriever
from agentgym.tools.retrieval.types import Document, Retriever
from agentgym.errors import unknown_name

NAMES = ("memory",)


def searched(name: str, documents: Sequence[Document]) -> Retriever:
    """A retriever over documents by name, shared by the environments of a process as long as these are the same.

    Raises:
        UnknownNameError: no such retriever.
    """
    with _lock:
        key = (name, id(documents))
        if key not in _open or _open[key][0] is not documents:
            while len(_open) >= _MOST_OPEN:
                _open.pop(next(iter(_open)))
            _open[key] = (documents, _opened(name, documents))
        return _open[key][1]


def _opened(name: str, documents: Sequence[Document]) -> Retriever:
    if name == "memory":
        return MemoryRetriever(documents)
    raise unknown_name("retriever", name, NAMES)


_MOST_OPEN = 4
_open: dict[tuple[str, int], tuple[Sequence[Document], Retriever]] = {}
_lock = threading.Lock()
