"""Settings and scripts of a browser context that make pages deterministic: equal actions lead to equal pages."""

from __future__ import annotations

import importlib.resources
import secrets
from dataclasses import dataclass
from functools import cache
from typing import Any

EPOCH_MS = 1_767_261_600_000
"""Start of a page's clock: Thursday, 1 January 2026, 10:00 UTC. Every document starts there."""
WORLD = "agentgym"
"""Name of the isolated JavaScript world from which pages are read."""
_WORLD_FILES = ("names.js", "tree.js", "hands.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextKind:
    """Settings of a browser context. Contexts with equal settings are interchangeable and are opened in advance.

    Example:
        >>> ContextKind(viewport=(332, 214)).options()["timezone_id"]
        'UTC'
    """

    viewport: tuple[int, int] = (1024, 768)
    """Width and height in CSS pixels, which are the screenshot's pixels."""
    service_workers: bool = False
    """True to allow service workers; the page's clock and the wait for a page to settle ignore their requests."""

    def options(self) -> dict[str, Any]:
        """Return Playwright's options for ``new_context``, without the proxy."""
        width, height = self.viewport
        return {
            "viewport": {"width": width, "height": height},
            "device_scale_factor": 1,
            "locale": "en-US",
            "timezone_id": "UTC",
            "color_scheme": "light",
            "reduced_motion": "reduce",
            "service_workers": "allow" if self.service_workers else "block",
            "accept_downloads": False,
        }


def new_channel() -> str:
    """Return a random name for the event by which the page's two JavaScript worlds communicate."""
    return f"x{secrets.token_hex(8)}"  # never in an observation or a state


def page_script(channel: str, seed: int) -> str:
    """Return the script that runs first in every document of a context, in the page's own world."""
    script = _source("determinism.js").replace("__CHANNEL__", channel)
    return script.replace("__SEED__", str(seed & 0xFFFFFFFF)).replace("__EPOCH_MS__", str(EPOCH_MS))


def world_script(channel: str) -> str:
    """Return the script that runs in every document in the isolated world."""
    return "\n".join(_source(name) for name in _WORLD_FILES).replace("__CHANNEL__", channel)


@cache
def _source(name: str) -> str:
    return (importlib.resources.files("agentgym.envs.gui") / "page" / name).read_text(encoding="utf-8")
