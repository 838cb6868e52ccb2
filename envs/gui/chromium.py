"""Find Chromium, and list its command-line flags."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from agentgym.errors import EnvError

VARIABLE = "AGENTGYM_CHROMIUM"
"""Environment variable with the path of Chromium, for a program that is not found automatically."""
INSTALL = "apt-get install chromium-headless-shell"
PROGRAMS = (
    # headless builds first, which open a page in half the processor time; Debian's is started without its wrapper,
    # which would remain as a process between this one and the browser
    "/usr/lib/chromium/chromium-headless-shell",
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
_NO_PROXY_HERE = "http://127.0.0.1:9"  # the discard port, so that requests of no context fail

FLAGS = (
    "--no-sandbox",  # without it Chromium does not start as root
    "--disable-gpu",
    "--disable-dev-shm-usage",  # /dev/shm is 64 MB in containers
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-service-autorun",
    # a page and its frames in one process, so that one connection and one clock reach them all
    "--disable-site-isolation-trials",
    # the same pixels on every machine
    "--font-render-hinting=none",
    "--disable-font-subpixel-positioning",
    "--disable-lcd-text",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    # no connection bypasses a context's proxy
    f"--proxy-server={_NO_PROXY_HERE}",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--dns-prefetch-disable",
)
UNWANTED = ("--disable-popup-blocking",)
"""Flags of Playwright that are left out, so that a page may open a window only upon a click."""


def why_not() -> str:
    """Return an empty text if Chromium is installed, else the reason and what to do."""
    try:
        find_chromium()
    except EnvError as error:
        return str(error)
    return ""


def find_chromium() -> Path:
    """Return Chromium's path: ``$AGENTGYM_CHROMIUM``, one of :data:`PROGRAMS`, or Playwright's newest download.

    Raises:
        EnvError: there is none; the message says how to install one.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise EnvError(f"{VARIABLE} names {named!r}, which is no program")
        return Path(named)
    for program in PROGRAMS:
        if found := shutil.which(program):
            return Path(found)
    if downloads := _playwrights_own():
        return downloads[-1]
    raise EnvError(
        f"no Chromium found: {INSTALL}, or playwright install chromium, or set {VARIABLE} to the program's path"
    )


def has_chromium() -> bool:
    """Return True if there is a Chromium to start."""
    try:
        find_chromium()
    except EnvError:
        return False
    return True


def flags(*, js_heap_mb: int, viewport: tuple[int, int]) -> list[str]:
    """Return the command-line flags of a browser.

    Args:
        js_heap_mb: JavaScript heap of one page in MB; a page that needs more crashes, other pages do not.
        viewport: width and height of a page in CSS pixels.
    """
    return [*FLAGS, f"--js-flags=--max-old-space-size={js_heap_mb}", f"--window-size={viewport[0]},{viewport[1]}"]


def _playwrights_own() -> list[Path]:
    """Return Chromium programs that ``playwright install`` has downloaded: oldest first, headless ones last."""
    named = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    folder = Path(named or os.path.expanduser("~/.cache/ms-playwright"))  # unlike Path.home, without a home, too
    found = [*folder.glob("chromium-*/chrome-linux*/chrome"), *folder.glob("chromium_*/chrome*linux*/*shell")]
    return sorted(found, key=lambda path: (path.name != "chrome", path.parts[-3]))
