"""Read a vLLM server's load from ``/metrics``, which has the text format of Prometheus."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields

_LINE = re.compile(r"^vllm:(\w+?)(?:_total)?(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
_CACHE_USE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
"""Name of the cache use now, and before vLLM 0.11. Both are shares, not per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """Load of one server. If it has several engines: the fullest cache, and sums of the other numbers."""

    queued: int
    """Number of waiting requests."""
    cache_use: float
    """Share of the key-value cache in use."""
    preempted: int
    """Counters since the server's start, also the next two; see :class:`~agentgym.engine.EngineHealth`."""
    prefix_tokens: int
    prefix_hits: int


_COUNTERS = ("preempted", "prefix_tokens", "prefix_hits")


def read_load(text: str) -> ServerLoad | None:
    r"""Read the answer; None if a number is missing, since other versions may have other names.

    Example:
        >>> lines = ["num_requests_waiting 3.0", "kv_cache_usage_perc 0.25", "num_preemptions_total 1.0"]
        >>> lines += ["prefix_cache_queries_total 80.0", 'prefix_cache_hits_total{engine="0"} 64.0']
        >>> read_load("\n".join(f"vllm:{line}" for line in lines))
        ServerLoad(queued=3, cache_use=0.25, preempted=1, prefix_tokens=80, prefix_hits=64)
        >>> read_load("something else") is None
        True
    """
    found: dict[str, list[float]] = defaultdict(list)
    for name, value in _LINE.findall(text):
        if math.isfinite(float(value)):
            found[name].append(float(value))
    names = ("num_requests_waiting", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits")
    uses = next((found[name] for name in _CACHE_USE if found[name]), [])
    if not uses or not all(found[name] for name in names):
        return None
    queued, preempted, tokens, hits = (int(sum(found[name])) for name in names)
    return ServerLoad(queued=queued, cache_use=max(uses), preempted=preempted, prefix_tokens=tokens, prefix_hits=hits)


class LoadTotals:
    """Counters of several servers over all their starts; a restarted server begins its own counters at 0."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = dict.fromkeys(_COUNTERS, 0)
        self._last: dict[str, ServerLoad] = {}

    def count(self, url: str, load: ServerLoad) -> None:
        """Add the current numbers of a server."""
        before = self._last.get(url)
        for name in _COUNTERS:
            now, then = getattr(load, name), 0 if before is None else getattr(before, name)
            self._totals[name] += now - then if now >= then else now
        self._last[url] = load

    def forget(self, url: str) -> None:
        """Remove a server that is out of service; its counters remain in the totals, its queue does not."""
        before = self._last.get(url)
        if before is not None:
            zero = {one.name: 0 for one in fields(before) if one.name not in _COUNTERS}
            self._last[url] = ServerLoad(**{**{name: getattr(before, name) for name in _COUNTERS}, **zero})

    def now(self) -> Mapping[str, float | int]:
        """Return the fields of :class:`~agentgym.engine.EngineHealth`; empty before any server has reported."""
        if not self._last:
            return {}
        loads = self._last.values()
        return {
            "queued": sum(load.queued for load in loads),
            "cache_use": max(load.cache_use for load in loads),
            **self._totals,
        }
