"""The live web or a recording of it, according to an environment's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentgym.errors import UsageError, require_known

if TYPE_CHECKING:
    from agentgym.tools.web.retriever import WebRetriever

ENGINES: Final = ("searxng", "brave", "cassette")


def live_web(engine: str, url: str, cassette: str, mode: str, date: str) -> LiveWeb | None:
    """Return the web that an environment's options name; None if they name none.

    Raises:
        UsageError: the options do not go together.
    """
    if engine:
        return LiveWeb(engine=engine, url=url, cassette=cassette, mode=mode, date=date)
    if url or cassette or date or mode != "auto":
        raise UsageError(f"engine_url and cassette need engine: {', '.join(ENGINES)}")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWeb:
    """A search engine, and the file that records its answers.

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
        if self.mode != "auto" and not self.cassette:
            raise UsageError(f"cassette_mode={self.mode} needs cassette, the file of recorded answers")
        if self.engine == "cassette" and not self.cassette:
            raise UsageError("engine=cassette needs cassette, the file of recorded answers, and cassette_date")
        if self.cassette and not self.date:
            raise UsageError("cassette needs cassette_date, which names the recorded state of the web: 2026-11-24")

    def retriever(self) -> WebRetriever:
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
