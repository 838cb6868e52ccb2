"""The pace of requests to an endpoint, and the options of its address."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.errors import UsageError
from agentgym.spending import usage_of
from agentgym.trainers.engines.openai.endpoint import Endpoint, parse_endpoint
from agentgym.trainers.engines.openai.pace import Pace

URL = "http://127.0.0.1:1/v1?model=m"


def test_requests_of_a_minute_are_spaced() -> None:
    now = 100.0
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    async def main() -> None:
        pace = Pace(Endpoint(url="x", requests_per_minute=30), 8, wait, lambda: now)
        for _ in range(3):
            async with pace.slot():
                pass

    asyncio.run(main())
    assert waits == [2.0, 4.0], "30 a minute are two seconds apart"


def test_requests_at_a_time_are_limited() -> None:
    async def main() -> int:
        pace, running, most = Pace(Endpoint(url="x", max_requests=2), 8), 0, 0

        async def ask() -> None:
            nonlocal running, most
            async with pace.slot():
                running += 1
                most = max(most, running)
                await asyncio.sleep(0)
                running -= 1

        await asyncio.gather(*(ask() for _ in range(6)))
        return most

    assert asyncio.run(main()) == 2


@pytest.mark.parametrize(
    "option",
    ["requests_per_minute=-1", "requests_per_minute=nan", "max_requests=-2", "check_tools=maybe", "max_requests=x"],
)
def test_wrong_options_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=option.partition("=")[0]):
        parse_endpoint(f"{URL}&{option}")


def test_zero_prompt_tokens_are_not_counted() -> None:
    assert usage_of({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}) is None
    assert usage_of({"usage": {"prompt_tokens": 5, "completion_tokens": 0}}) is not None
    assert parse_endpoint(f"{URL}&check_tools=false").check_tools is False
