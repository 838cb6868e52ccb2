"""The limit of episodes in flight, fixed or adapted to the engine's load.

More concurrent episodes fill the engine's batches and hide the latency of environments until the engine is saturated.
Further episodes only queue for the engine, hold memory (key-value caches, sandboxes) and become stale.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from agentgym.engine import EngineHealth
from agentgym.errors import ConfigError
from agentgym.types import Turn

MAX_CACHE_USE = 0.85
"""Share of the engine's key-value cache in use, 0 to 1, above which the limit no longer grows."""
Priority = tuple[int, int]
"""(ordinal, member) of an episode. The smallest starts first, so that old groups finish before new ones start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledReport:
    """A report of the completions that another process received in a span of time."""

    num_turns: int = 0
    """Number of completions with at least one token."""
    num_tokens: int = 0
    generate_s: float = 0.0
    """Seconds from request to completion, summed over the completions."""
    span_s: float = 0.0
    """Seconds that the report covers."""

    def plus(self, turn: Turn) -> SampledReport:
        """Return the report with one more completion."""
        if not turn.completion.token_ids:
            return self
        return replace(
            self,
            num_turns=self.num_turns + 1,
            num_tokens=self.num_tokens + len(turn.completion.token_ids),
            generate_s=self.generate_s + turn.latency.generate_s,
        )

    def since(self, earlier: SampledReport) -> SampledReport:
        """Return the report of the time after an earlier report that began with this one.

        Example:
            >>> SampledReport(num_turns=5, span_s=3.0).since(SampledReport(num_turns=2, span_s=1.0)).num_turns
            3
        """
        return SampledReport(
            num_turns=self.num_turns - earlier.num_turns,
            num_tokens=self.num_tokens - earlier.num_tokens,
            generate_s=self.generate_s - earlier.generate_s,
            span_s=self.span_s - earlier.span_s,
        )


class InFlight:
    """A semaphore for episodes, ordered by priority.

    Args:
        limit: most episodes at a time; ignored if ``adaptive`` is given.
        adaptive: rule that adapts the limit to the engine's load; None for a fixed limit.
        clock: function that returns seconds, for ``adaptive``.
        health: function that returns the engine's load, for ``adaptive``; None if the engine does not report it.
    """

    def __init__(
        self,
        limit: int,
        adaptive: AdaptiveLimit | None = None,
        clock: Callable[[], float] = time.perf_counter,
        health: Callable[[], EngineHealth | None] = lambda: None,
    ) -> None:
        self._adaptive, self._clock, self._health = adaptive, clock, health
        self.limit = limit if adaptive is None else adaptive.limit
        """Current limit of episodes in flight."""
        self._waiting: list[tuple[Priority, int, asyncio.Future[None]]] = []
        self._num_requests = 0
        self._window_began = clock()
        self.num_playing = 0
        self.follows_reports = False
        """True if turns arrive late, with their episodes, so that :meth:`observe_report` adapts the limit alone."""

    @property
    def num_waiting(self) -> int:
        """Number of episodes that wait for a slot."""
        return sum(not admitted.done() for *_, admitted in self._waiting)

    @asynccontextmanager
    async def slot(self, priority: Priority) -> AsyncIterator[None]:
        """Wait for a slot and hold it during the ``with`` block."""
        await self._enter(priority)
        try:
            yield
        finally:
            self.num_playing -= 1
            self._admit()

    def observe(self, turn: Turn) -> None:
        """Adapt the limit to the engine's time for a turn."""
        if self._adaptive is not None and not self.follows_reports:
            self._observe(SampledReport().plus(turn))

    def observe_report(self, sampled: SampledReport) -> None:
        """Adapt the limit to another process's turns, unless the report began before the current window."""
        if self._clock() - sampled.span_s >= self._window_began:
            self._observe(sampled)

    def begin_window(self) -> None:
        """Start a new window of turns after a pause, for example for a training step."""
        self._window_began = self._clock()
        if self._adaptive is not None:
            self._adaptive.begin_window(self._window_began)

    def _observe(self, sampled: SampledReport) -> None:
        if self._adaptive is None or not sampled.num_turns:
            return
        self._adaptive.observe(
            self._clock(),
            sampled.num_tokens,
            sampled.generate_s,
            num_turns=sampled.num_turns,
            is_full=self.num_playing >= self.limit,
            is_over=self.num_playing > self.limit,
            health=self._health(),
        )
        self.limit = self._adaptive.limit
        self._admit()

    async def _enter(self, priority: Priority) -> None:
        admitted = asyncio.get_running_loop().create_future()
        self._num_requests += 1
        heapq.heappush(self._waiting, (priority, self._num_requests, admitted))
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            # both lines run in one iteration of the event loop, so the count is never exceeded
            if admitted.done() and not admitted.cancelled():
                self.num_playing -= 1
            self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and self.num_playing < self.limit:
            _, _, admitted = heapq.heappop(self._waiting)
            if not admitted.done():  # a cancelled waiter is skipped
                admitted.set_result(None)
                self.num_playing += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    tokens_per_s: float
    s_per_token: float
    """Mean seconds per sampled token, including queueing and prefill."""


class AdaptiveLimit:
    """Additive increase and multiplicative decrease (AIMD) of the limit of episodes in flight.

    The rule works on windows of ``window_turns`` completions. A window is *congested* if both conditions hold:

    * A token took more than ``max_slowdown`` times as long as in the fastest recent window. Requests then queue, or
      batches are so large that every decoding step is slow.
    * Since the last increase, tokens per second rose by less than half of the gain that an unsaturated engine would
      show.

    Latency alone would stop the increase at the first batch of two, and throughput alone at any noise.

    If the engine reports its load (:class:`~agentgym.engine.EngineHealth`), the rule also reads it at the end of each
    window. The window is congested if the engine has preempted requests since the last window, or if the number of
    queued requests exceeds half of the running ones. The limit does not grow while any request is queued, or while more
    than :data:`MAX_CACHE_USE` of the cache is in use, since conversations and their keys and values grow with every
    turn.

    Until the first congestion, the limit doubles after each window in which it was reached; after that it grows by
    ``step``. A congested window multiplies it by ``decrease``, which is low enough to measure an unsaturated engine
    again. A window in which the limit was not reached changes nothing, unless the reported load shows congestion.
    Checkpoints do not store the limit; a resumed run finds it again.

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
        self._num_preempted: int | None = None
        self.limit = min(max(first, least), most)
        self._is_doubling = True
        self._fastest: deque[float] = deque(maxlen=num_remembered)
        self._before: tuple[int, _Window] | None = None
        """Limit before the last increase and the window measured with it."""
        self._since: float | None = None
        self._clear()

    def begin_window(self, now: float) -> None:
        """Start a new window."""
        self._since = now
        self._clear()

    def observe(
        self,
        now: float,
        num_tokens: int,
        generate_s: float,
        *,
        is_full: bool,
        num_turns: int = 1,
        is_over: bool = False,
        health: EngineHealth | None = None,
    ) -> None:
        """Add completions to the current window, and adapt the limit at the window's end.

        Args:
            now: current time in seconds, on any monotonic clock.
            num_tokens: sampled tokens of the completions.
            generate_s: seconds from request to completion, summed over the completions.
            num_turns: number of completions.
            is_full: True if the limit of episodes in flight was reached.
            is_over: True if more episodes than the limit are in flight, because the limit was lowered. The reported
                load then still reflects the old limit and is ignored.
            health: the engine's current load; None if the engine does not report it.
        """
        if self._since is None:
            self.begin_window(now)
            return
        self._num_turns += num_turns
        self._num_full += num_turns * is_full
        self._num_tokens += num_tokens
        self._generate_s += generate_s
        if self._num_turns >= self._window_turns and now > self._since:
            window = _Window(
                tokens_per_s=self._num_tokens / (now - self._since), s_per_token=self._generate_s / self._num_tokens
            )
            is_pressed = self._is_pressed(health)
            is_of_before = is_over and health is not None
            if not is_of_before and (is_pressed or 2 * self._num_full >= self._num_turns):
                self._decide(window, health, is_pressed=is_pressed)
            self.begin_window(now)

    def _is_pressed(self, health: EngineHealth | None) -> bool:
        """Return True if the reported load shows congestion: preemptions, or a long queue."""
        if health is None:
            return False
        before, self._num_preempted = self._num_preempted, health.preempted
        lost = health.preempted is not None and before is not None and health.preempted > before
        return lost or 2 * (health.queued or 0) > health.running > 0

    def _decide(self, window: _Window, health: EngineHealth | None, *, is_pressed: bool) -> None:
        self._fastest.append(window.s_per_token)
        if is_pressed or self._is_congested(window):
            self.limit = max(self._least, int(self.limit * self._decrease))
            self._is_doubling, self._before = False, None
            return
        if health is not None and (health.queued or (health.cache_use or 0.0) > MAX_CACHE_USE):
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
