"""Measure how fast each tool-call format reads text that is not a call, compared with ``json.loads`` on as much JSON.

    PYTHONPATH=. OMP_NUM_THREADS=1 python benchmarks/render/garbage.py --output benchmarks/render/garbage

A reader that searches again after each half call, or whose time grows with nesting, needs minutes for some of these
texts. Each format reads all of :func:`shapes`; the table has the slowest, in processor seconds, the best of two rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from random_calls import TOOLS

from agentgym.render.families import FORMATS
from agentgym.types import ToolCall

FORMS = tuple(sorted(set(FORMATS) - {"text"}))
STRUCTURE = (
    *("[", "(", "{", "<", "]", "}", ")", "|", "\\", "`", ",", ":", ";", "=", "\n", " ", "\t\n", "a", "é", '"', "'"),
    *("'''", '"""', '"\\', "'\\", '\\"', "\\n", "\\N{", "\\u00", '"a;', '"\\";', "```", "```json", "#\n", "</", "|>"),
    *("[1,", "1,", "'',", "1_", "9", '{"a":', "'k':1,", "},{", '},{"name":"', "{ ", "a: ", 'a: "', "a=", "a=1,"),
    *("a.", "a;", "),", "),f(", "f(),"),
)
"""Pieces of text that are repeated: brackets, quotes, escapes, separators and incomplete values of all formats."""


def shapes(form: str, size: int) -> Iterator[tuple[str, str]]:
    """Yield texts of about ``size`` characters that are hard to read in a format, each with its name."""
    calls = [ToolCall("take_it", {"place": "mug", "count": 1}), ToolCall("write", {"tags": ["a"], "note": "b"})]
    whole = FORMATS[form].format(calls, TOOLS)
    cuts = sorted(
        {4, 8, 12, 16, 20, 24, 30, len(whole) // 4, len(whole) // 2, len(whole) * 2 // 3, len(whole) - 2, len(whole)}
    )
    for cut in cuts:
        part = whole[:cut]
        for name, piece in (
            ("{}", part),
            ("line {}", part + "\n"),
            ("nested {}", "[" * 40 + part),
            ("objects {}", '{"a":' * 30 + part),
            ("reversed {}", part[::-1]),
        ):
            yield name.format(repr(part)), piece * (size // len(piece))
    for piece in STRUCTURE:
        many = piece * (size // len(piece))
        yield f"{piece!r}", many
        for cut in (len(whole) // 4, len(whole) // 2, len(whole) * 2 // 3, len(whole) - 3, len(whole)):
            yield f"{whole[:cut]!r} and {piece!r}", whole[:cut] + many
        half = whole[: len(whole) * 2 // 3] + piece
        yield f"half and {piece!r}", half * (size // len(half))


def seconds(work: Callable[[], object], rounds: int = 2) -> float:
    """Return the processor seconds of the fastest round."""
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


def measure(size: int) -> list[dict[str, object]]:
    """Return one row for each format: its slowest text, and its speed compared with that of ``json.loads``."""
    document = json.dumps([{"name": "take_it", "arguments": {"place": "mug", "count": 1}}] * (size // 64))
    yardstick = len(document) / 1e6 / seconds(lambda: json.loads(document), rounds=5)
    rows: list[dict[str, object]] = []
    for form in FORMS:
        read = FORMATS[form].parse
        slowest, name, length = max(
            (seconds(partial(read, text, TOOLS)), name, len(text)) for name, text in shapes(form, size)
        )
        speed = length / 1e6 / slowest
        rows.append(
            {
                "format": form,
                "shapes": sum(1 for _ in shapes(form, 1000)),
                "slowest_s": round(slowest, 3),
                "mb_per_s": round(speed, 1),
                "json_loads_mb_per_s": round(yardstick, 1),
                "times_slower_than_json_loads": round(yardstick / speed, 1),
                "slowest_text": name if len(name) < 80 else f"{name[:50]} ... {name[-25:]}",
            }
        )
    return rows


def as_markdown(rows: list[dict[str, object]], said: str) -> str:
    """Return the table."""
    lines = [
        said,
        "",
        "| format | texts | slowest, s | MB/s | times slower than `json.loads` | slowest text |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        text = str(row["slowest_text"]).replace("|", "\\|").replace("`", "'")
        lines.append(
            f"| `{row['format']}` | {row['shapes']} | {row['slowest_s']} | {row['mb_per_s']} "
            f"| {row['times_slower_than_json_loads']} | {text} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1_000_000, help="length of a text in characters")
    parser.add_argument("--output", type=Path, required=True, help="path without suffix; .json and .md are written")
    args = parser.parse_args()
    rows = measure(args.size)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    said = (
        f"Texts of {args.size:,} characters, {datetime.now(UTC).date().isoformat()}, commit {commit.stdout.strip()}, "
        f"Python {platform.python_version()}; `json.loads` reads {rows[0]['json_loads_mb_per_s']} MB/s in the same run."
    )
    args.output.with_suffix(".json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    args.output.with_suffix(".md").write_text(as_markdown(rows, said), encoding="utf-8")


if __name__ == "__main__":
    main()
