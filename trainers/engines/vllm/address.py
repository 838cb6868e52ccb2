"""The address of vLLM servers on the command line, with the model that they serve."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl

from agentgym.errors import UsageError, unknown_name
from agentgym.trainers.engines.config import EngineConfig

SERVED = "vllm:"
"""Beginning of the name of a policy on vLLM servers."""
ON_RAY = "ray"
"""Address of servers that the Ray cluster of a run starts."""
EXPECTED = "vllm:http://HOST:PORT?model=SOURCE, several addresses with commas between them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The servers of a policy, and their model."""

    urls: tuple[str, ...]
    """Addresses; none for servers that the run's Ray cluster starts (``vllm:ray?model=SOURCE``)."""
    model: str
    """A source that :func:`~agentgym.trainers.models.sources.local_model` reads."""
    weight_dir: str = ""
    """Folder for the weights, under a path that the servers see too; empty: a temporary folder."""


def parse_served(text: str) -> Served:
    """Parse the servers of a command's ``vllm:`` policy.

    Raises:
        UsageError: the text does not have the form ``HOST[,HOST]?model=SOURCE``.

    Example:
        >>> parse_served("http://127.0.0.1:8000,http://127.0.0.1:8001?model=smollm2").urls
        ('http://127.0.0.1:8000', 'http://127.0.0.1:8001')
    """
    urls, _, query = text.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := next((name for name in given if name not in ("model", "weight_dir")), None):
        raise unknown_name("option of servers", unknown, ["model", "weight_dir"])
    if not given.get("model"):
        raise UsageError(f"expected {EXPECTED}; got vllm:{text}, which names no model")
    listed = () if urls == ON_RAY else tuple(url.rstrip("/") for url in urls.split(","))
    made = EngineConfig(kind="vllm", urls=listed)  # rejects invalid addresses
    return Served(urls=made.urls, model=given["model"], weight_dir=given.get("weight_dir", ""))
