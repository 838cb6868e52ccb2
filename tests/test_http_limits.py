"""Every HTTP client reads answers of limited size."""

from __future__ import annotations

import asyncio
import gzip
import re
from pathlib import Path

import httpx
import pytest

from agentgym.http_limits import limited_async_client, limited_client

ROOT = Path(__file__).resolve().parents[1]
DRIVERS = ("agentgym/endpoint/drivers/langgraph_agent.py", "agentgym/endpoint/drivers/pydantic_ai_agent.py")
"""Programs in the agents' own Python, which ask the policy's endpoint alone."""
OWN_LIMITS = {"agentgym/http_limits.py", "tools/web/fetch.py", *DRIVERS}
"""Modules that may make a client: the limits themselves, and the fetcher, which counts packed and unpacked bytes."""


def answer(request: httpx.Request) -> httpx.Response:
    assert request.headers["accept-encoding"] == "identity"
    if request.url.path == "/packed":
        return httpx.Response(200, headers={"content-encoding": "gzip"}, content=gzip.compress(b"0" * 10_000))
    return httpx.Response(200, stream=httpx.ByteStream(b"0" * int(request.url.path[1:])))


@pytest.mark.parametrize(("path", "fault"), [("/packed", "uncompressed"), ("/1001", "larger than 1,000 bytes")])
def test_packed_and_large_answers_are_refused(path: str, fault: str) -> None:
    transport = httpx.MockTransport(answer)
    with limited_client(max_bytes=1_000, transport=transport) as client:
        assert client.get("http://a/1000").content == b"0" * 1_000
        with pytest.raises(httpx.DecodingError, match=fault):
            client.get(f"http://a{path}")

    async def ask() -> None:
        async with limited_async_client(max_bytes=1_000, transport=transport, headers={"X": "y"}) as client:
            assert (await client.get("http://a/1000")).content == b"0" * 1_000
            await client.get(f"http://a{path}")

    with pytest.raises(httpx.DecodingError, match=fault):
        asyncio.run(ask())


def test_no_module_makes_a_client_without_limits() -> None:
    folders = [ROOT / name for name in ("agentgym", "envs", "tools", "trainers", "sandboxes")]
    made = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in folder.rglob("*.py")
        if re.search(r"httpx\.(Async)?Client\(|\brequests\.(get|post)\(|urlopen\(", path.read_text(encoding="utf-8"))
    }
    assert {name for name in made if "agentgym/envs" not in name} <= OWN_LIMITS
