"""The address of an OpenAI-compatible endpoint on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from agentgym.errors import UsageError, unknown_name
from agentgym.render.families import FORMATS

KEY_VARIABLE: Final = "OPENAI_API_KEY"
_OPTIONS: Final[Mapping[str, Callable[[str], object]]] = {
    "model": str,
    "timeout_s": float,
    "num_tries": int,
    "tools": str,
    "format": str,
    "tools_style": str,
    "results": str,
    "check_tools": lambda text: {"true": True, "false": False}[text.lower()],
    "requests_per_minute": float,
    "max_requests": int,
}
_TOOLS: Final = ("server", "text", "template")
COUNTS_MESSAGES: Final = "If the server counts the messages alone, add &check_tools=false to the address"
_NUMBERS: Final = "timeout_s, num_tries, requests_per_minute and max_requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a model, and the settings of requests."""

    url: str
    """Address including ``/v1``."""
    model: str = ""
    """Name of the model; empty: the only one that the endpoint lists."""
    timeout_s: float = 300.0
    """Seconds that one request may take."""
    num_tries: int = 6
    """Number of requests for one completion if the server is busy or unreachable, with pauses of 1, 2, 4, 8, 16 s."""
    tools: str = "server"
    """``server``: send the tools; the server parses the calls. ``text``: describe the tools in the first message, and
    parse the calls here, for servers and models without tool support. ``template``: the server renders the tools by the
    model's chat template, and the calls are parsed here."""
    format: str = "hermes"
    """Tool-call format with ``tools=text`` and ``tools=template``."""
    tools_style: str = "schema"
    """Style of the descriptions with ``tools=text``: JSON schemas, or ``compact``, one line for each tool."""
    results: str = "user"
    """Role of the messages with tools' results, where calls are parsed here: ``user``, or ``tool`` for templates that
    render these."""
    follows_model: bool = False
    """True if the address leaves these four open: a model that agentgym trained is asked as it was trained, if the
    server names a folder of this machine."""
    check_tools: bool = True
    """Check once that a prompt is shorter without the tools; false for gateways that count the messages alone."""
    requests_per_minute: float = 0.0
    """Most requests that begin in a minute, evenly spaced; 0 for no limit."""
    max_requests: int = 0
    """Most requests at a time; 0 for one per episode."""


def parse_endpoint(text: str) -> Endpoint:
    """Parse an endpoint of the command line, such as ``http://127.0.0.1:8000/v1?model=NAME&timeout_s=60``.

    Raises:
        UsageError: the address or one of its options is wrong.

    Example:
        >>> parse_endpoint("http://127.0.0.1:8000/v1?model=Qwen/Qwen3-4B").model
        'Qwen/Qwen3-4B'
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"expected openai:http://HOST:PORT/v1?model=NAME, got openai:{text}")
    if parts.username or parts.password:
        raise UsageError(f"leave the key out of the address, which is kept with the results: set {KEY_VARIABLE}")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := next((name for name in given if name not in _OPTIONS), None):
        raise unknown_name("option of an endpoint", unknown, sorted(_OPTIONS))
    url = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    try:
        options: dict[str, Any] = {name: _OPTIONS[name](value) for name, value in given.items()}
    except ValueError as error:
        raise UsageError(f"{_NUMBERS} of an endpoint are numbers: {error}") from None
    except KeyError as error:
        raise UsageError(f"an endpoint's check_tools is true or false, got {error}") from None
    is_open = not given.keys() & {"tools", "format", "tools_style", "results"}
    endpoint = Endpoint(url=url, **options, follows_model=is_open)
    check_endpoint(endpoint)
    if given.keys() & {"format", "results"} and endpoint.tools == "server":
        raise UsageError("the server reads the calls itself; leave out format= and results=, or set tools=text")
    if "tools_style" in given and endpoint.tools != "text":
        raise UsageError("tools_style= is for descriptions in the first message; leave it out, or set tools=text")
    return endpoint


def check_endpoint(endpoint: Endpoint) -> None:
    """Raise an error if an option's value is out of range or unknown."""
    if not endpoint.timeout_s > 0 or endpoint.num_tries < 1:
        raise UsageError("an endpoint's timeout_s must be above 0 and num_tries at least 1")
    if not 0 <= endpoint.requests_per_minute < math.inf or endpoint.max_requests < 0:
        raise UsageError("an endpoint's requests_per_minute and max_requests are at least 0, where 0 is no limit")
    if endpoint.tools not in _TOOLS:
        raise UsageError(f"an endpoint's tools are {', '.join(_TOOLS[:-1])} or {_TOOLS[-1]}, got {endpoint.tools!r}")
    if endpoint.tools_style not in ("schema", "compact"):
        raise UsageError(f"an endpoint's tools_style is schema or compact, got {endpoint.tools_style!r}")
    if endpoint.results not in ("user", "tool"):
        raise UsageError(f"an endpoint's results are user or tool messages, got {endpoint.results!r}")
    if endpoint.format not in FORMATS:
        raise unknown_name("tool-call format", endpoint.format, sorted(FORMATS))
