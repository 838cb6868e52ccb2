"""The live web, or what was recorded of it, as an environment's options name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agentgym.errors import UsageError, require_known
from agentgym.tools.retrieval.types import Retriever

ENGINES: Final = ("searxng", "brave", "cassette")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWeb:
    """An engine that finds pages, and the file that remembers what it said.

    Args:
        engine: ``searxng`` (or searx), ``brave`` with its key in ``BRAVE_API_KEY``, or ``cassette``, which asks nobody.
        url: of the SearxNG instance.
        cassette: file of recorded answers; without one every answer is the web's of this moment.
        mode: ``auto``, ``record`` or ``replay`` (:class:`~agentgym.tools.web.cassette.CassetteMode`).
        date: names the state of the web that is recorded or played.

    Raises:
        UsageError: the options do not go together.
    """

    engine: str
    url: str = ""
    cassette: str = ""
    mode: str = "auto"
    date: str = ""

    def __post_init__(self) -> None:
        require_known("engine", self.engine, ENGINES)
        if (self.engine == "searxng") != bool(self.url):
            raise UsageError(
                "engine=searxng needs engine_url, the address of your instance"
                if self.engine == "searxng"
                else f"engine_url is for engine=searxng, not {self.engine}"
            )
        if self.engine == "cassette" and not self.cassette:
            raise UsageError("engine=cassette needs cassette, the file of recorded answers, and cassette_date")
        if self.cassette and not self.date:
            raise UsageError("cassette needs cassette_date, which names the recorded state of the web: 2026-11-24")

    def retriever(self) -> Retriever:
        """Return the web as a retriever.

        Raises:
            UsageError: there is nothing to replay.
            ConfigError: the engine's key is not set.
        """
        # httpx is slow to import
        from agentgym.tools.web.cassette import Cassette, CassetteMode
        from agentgym.tools.web.engines import BraveSearch, RecordedEngine, SearxNG
        from agentgym.tools.web.retriever import WebRetriever

        require_known("cassette_mode", self.mode, list(CassetteMode))
        if self.engine == "cassette":
            tape = Cassette(self.cassette, CassetteMode.REPLAY, date=self.date)
            return WebRetriever(RecordedEngine(tape), cassette=tape)
        recorded = Cassette(self.cassette, self.mode, date=self.date) if self.cassette else None
        return WebRetriever(SearxNG(self.url) if self.engine == "searxng" else BraveSearch(), cassette=recorded)
