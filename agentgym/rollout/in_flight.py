"""How many episodes are played at the same time: a number, or one that follows what the engine can take.

More episodes at a time fill the engine's batches and hide the environments' waiting, until the engine is full; beyond
that they only wait for each other, hold memory (key-value caches, sandboxes), and grow old.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentgym.errors import ConfigError
from agentgym.types import Turn

Priority = tuple[int, int]
"""(ordinal, member): the smaller goes first, so that old groups are finished before new ones begin."""


class InFlight:
    """Lets episodes begin, at most ``limit`` at a time, by priority.

    Args:
        limit: episodes at a time; where ``adaptive`` is given, it sets the number from there on.
        clock: seconds, for ``adaptive``.
    """

    def __init__(
        self, limit: int, adaptive: AdaptiveLimit | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._adaptive, self._clock = adaptive, clock
        self._limit = limit if adaptive is None else adaptive.limit
        self._waiting: list[tuple[Priority, int, asyncio.Future[None]]] = []
        self._num_asked = 0
        self.num_playing = 0

    @property
    def limit(self) -> int:
        """Episodes that may be played at a time, now."""
        return self._limit

    @asynccontextmanager
    async def place(self, priority: Priority) -> AsyncIterator[None]:
        """A place for one episode."""
        await self._enter(priority)
        try:
            yield
        finally:
            self.num_playing -= 1
            self._admit()

    def observe(self, turn: Turn) -> None:
        """A turn was played: what the engine took for it is what the limit follows."""
        if self._adaptive is None or not turn.completion.token_ids:
            return
        is_full = self.num_playing >= self._limit
        self._adaptive.observe(self._clock(), len(turn.completion.token_ids), turn.latency.generate_s, is_full=is_full)
        self._limit = self._adaptive.limit
        self._admit()

    def begin_window(self) -> None:
        """Forget the turns of the window that has begun: the engine was idle for other reasons."""
        if self._adaptive is not None:
            self._adaptive.begin_window(self._clock())

    async def _enter(self, priority: Priority) -> None:
        admitted = asyncio.get_running_loop().create_future()
        self._num_asked += 1
        heapq.heappush(self._waiting, (priority, self._num_asked, admitted))
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():  # admitted and cancelled in the same turn of the loop
                self.num_playing -= 1
            self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and self.num_playing < self._limit:
            _, _, admitted = heapq.heappop(self._waiting)
            if not admitted.done():  # else it was cancelled
                admitted.set_result(None)
                self.num_playing += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    tokens_per_s: float
    s_per_token: float
    """Mean seconds that a sampled token took its caller, waiting and reading the prompt included."""


class AdaptiveLimit:
    """Additive increase, multiplicative decrease of the episodes in flight, by what the engine delivers.

    Completions are looked at in windows of ``window_turns``. The engine counts as *congested* in a window if both hold:
    a token took more than ``max_slowdown`` times what it took in the fastest of the latest windows (requests queue, or
    batches are so large that every tick is slow), and since the last increase the tokens per second did not rise by
    half of what the increase would bring if the engine had room. Latency alone would stop at the first batch of two,
    throughput alone at any noise.

    Until the first congestion the limit doubles with each window in which it was reached, then it grows by ``step``; a
    congested window multiplies it by ``decrease``, deep enough to see again what an engine with room is like. A window
    in which the limit was not reached says nothing about it. Nothing of this is kept in checkpoints: a resumed run
    finds its limit anew within some windows.

    Example:
        >>> limit = AdaptiveLimit(first=8, most=64, window_turns=2)
        >>> for now in (1.0, 2.0, 3.0):
        ...     limit.observe(now, num_tokens=10, generate_s=0.5, is_full=True)
        >>> limit.limit
        16
    """

    def __init__(
        self,
        *,
        most: int,
        first: int = 8,
        least: int = 1,
        step: int = 2,
        decrease: float = 0.5,
        window_turns: int = 64,
        max_slowdown: float = 1.5,
        num_remembered: int = 32,
    ) -> None:
        if not 1 <= least <= most or step < 1 or not 0 < decrease < 1 or window_turns < 1 or max_slowdown <= 1:
            raise ConfigError(
                "an adaptive limit needs 1 <= least <= most, step and window_turns of at least 1, decrease between 0 "
                "and 1, max_slowdown above 1"
            )
        self._least, self._most, self._step, self._decrease = least, most, step, decrease
        self._window_turns, self._max_slowdown = window_turns, max_slowdown
        self.limit = min(max(first, least), most)
        self._is_doubling = True
        self._fastest: deque[float] = deque(maxlen=num_remembered)
        self._before: tuple[int, _Window] | None = None
        """The limit before the last increase, and what the engine delivered under it."""
        self._begun_at: float | None = None
        self._clear()

    def begin_window(self, now: float) -> None:
        """Start counting anew."""
        self._begun_at = now
        self._clear()

    def observe(self, now: float, num_tokens: int, generate_s: float, *, is_full: bool) -> None:
        """A completion.

        Args:
            now: seconds on any clock.
            generate_s: seconds from the request to the completion.
            is_full: whether as many episodes were in flight as may be.
        """
        if self._begun_at is None:
            self.begin_window(now)
            return
        self._num_turns += 1
        self._num_full += is_full
        self._num_tokens += num_tokens
        self._generate_s += generate_s
        if self._num_turns >= self._window_turns and now > self._begun_at:
            window = _Window(
                tokens_per_s=self._num_tokens / (now - self._begun_at), s_per_token=self._generate_s / self._num_tokens
            )
            if 2 * self._num_full >= self._num_turns:
                self._decide(window)
            self.begin_window(now)

    def _decide(self, window: _Window) -> None:
        self._fastest.append(window.s_per_token)
        if self._is_congested(window):
            self.limit = max(self._least, int(self.limit * self._decrease))
            self._is_doubling, self._before = False, None
            return
        self._before = (self.limit, window)
        self.limit = min(self._most, 2 * self.limit if self._is_doubling else self.limit + self._step)

    def _is_congested(self, window: _Window) -> bool:
        if self._before is None or window.s_per_token <= self._max_slowdown * min(self._fastest):
            return False
        limit, earlier = self._before
        hoped_for = earlier.tokens_per_s * self.limit / limit
        return window.tokens_per_s < (earlier.tokens_per_s + hoped_for) / 2

    def _clear(self) -> None:
        self._num_turns = self._num_full = self._num_tokens = 0
        self._generate_s = 0.0
