"""Record a command in a terminal, and write what it shows as an animated SVG.

    python benchmarks/pictures/recording.py docs/images/demo.svg -- agentgym train smollm2-demo --episodes 1

The text and its order are the command's. Pauses are shortened by one factor, which the title of the picture says.
Lines that the command overwrites, as progress bars, are shown as they were left.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import termios
import time
from html import escape
from pathlib import Path

COLUMNS = 110
SHOWN_S = 12.0
BAR = "━"
LINE_PX, COLUMN_PX, MARGIN_PX, HEAD_PX = 17, 7.25, 14, 30
CONTROL = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9]|[=>])")

STYLE = """
text { font: 12px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #d6d9e0; white-space: pre }
.head { fill: #8d94a5 } .command { fill: #9ece6a }
.line { opacity: 0; animation: shown .01s forwards }
@keyframes shown { to { opacity: 1 } }
@media (prefers-reduced-motion: reduce) { .line { animation-delay: 0s !important } }
"""


def record(command: list[str]) -> list[tuple[float, str]]:
    """Return the lines that a command shows on a terminal, each with the second at which it appeared.

    Raises:
        SystemExit: the command fails.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, close_fds=True)
    os.close(theirs)
    lines: list[tuple[float, str]] = []
    rest = b""
    while True:
        try:
            got = os.read(ours, 65536)
        except OSError:  # Linux says so when the last writer has closed the terminal
            break
        if not got:
            break
        *whole, rest = (rest + got).split(b"\n")
        lines += [(time.monotonic() - begun, line) for line in map(as_left, whole) if line is not None]
    if process.wait() != 0:
        raise SystemExit(f"{shlex.join(command)} ended with {process.returncode}:\n" + "\n".join(t for _, t in lines))
    return lines


def as_left(raw: bytes) -> str | None:
    """Return a line as its last carriage return left it, without control codes; None if only these were in it."""
    shown = [CONTROL.sub("", part) for part in raw.decode("utf-8", "replace").split("\r")]
    left = next((part.rstrip() for part in reversed(shown) if part.strip()), "")
    return None if not left and CONTROL.search(raw.decode("utf-8", "replace")) else left


def without_repeats(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Keep the last state of each progress bar, which a terminal draws over the earlier ones."""
    last = {text.split(BAR)[0].strip(): number for number, (_, text) in enumerate(lines) if BAR in text}
    return [
        (at, text)
        for number, (at, text) in enumerate(lines)
        if BAR not in text or last[text.split(BAR)[0].strip()] == number
    ]


def chosen(lines: list[tuple[float, str]], most: int) -> list[tuple[float, str]]:
    """Return at most so many lines: the first third and the last two, with a line of dots between them."""
    if len(lines) <= most:
        return lines
    first = most // 3
    return [*lines[:first], (lines[first][0], "  ..."), *lines[len(lines) - (most - first - 1) :]]


def svg(command: list[str], lines: list[tuple[float, str]]) -> str:
    seconds = lines[-1][0]
    factor = max(1.0, seconds / SHOWN_S)
    wrapped = [(at, text[:COLUMNS]) for at, text in lines]
    width = int(2 * MARGIN_PX + COLUMNS * COLUMN_PX)
    height = HEAD_PX + (len(wrapped) + 2) * LINE_PX + MARGIN_PX
    title = f"{seconds:.0f} s, shown {factor:.0f} times as fast"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(shlex.join(command))}: {title}</title><style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#1a1b26"/>',
        '<circle cx="18" cy="16" r="5" fill="#f7768e"/><circle cx="36" cy="16" r="5" fill="#e0af68"/>',
        f'<circle cx="54" cy="16" r="5" fill="#9ece6a"/><text class="head" x="{width - 14}" y="20" '
        f'text-anchor="end">{title}</text>',
        f'<text class="command" x="{MARGIN_PX}" y="{HEAD_PX + LINE_PX}">$ {escape(shlex.join(command))}</text>',
    ]
    for number, (at, text) in enumerate(wrapped, start=2):
        if text:
            place = f'x="{MARGIN_PX}" y="{HEAD_PX + number * LINE_PX}"'
            delay = f"animation-delay:{at / factor:.2f}s"
            parts.append(f'<text class="line" style="{delay}" {place}>{escape(text)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--lines", type=int, default=40, help="show at most this many lines, the first and the last ones"
    )
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    lines = without_repeats(record(given.command))
    given.out.write_text(svg(given.command, chosen(lines, given.lines)), encoding="utf-8")
    print(f"{given.out}: {len(lines)} lines, {given.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
