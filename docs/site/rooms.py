"""Count the Python lines of each room, and write those of the architecture page: ``python docs/site/rooms.py``.

A budget is the number of lines that a room may have. The script lowers budgets to what rooms need, rounded up to 50; a
commit that raises one does so by hand, and says why.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
FOLDERS = ("agentgym", "trainers", "envs", "tools", "sandboxes")
HEAD = "| room | lines | budget |\n|---|---|---|\n"


def counted() -> dict[str, int]:
    """Return the number of Python lines of each room; files beside rooms count as one."""
    lines: Counter[str] = Counter()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            first, *rest = path.relative_to(ROOT / folder).parts
            if not (rest and (ROOT / folder / first).is_symlink()):
                lines[f"{folder}/{first}/" if rest else f"{folder}/*.py"] += path.read_text("utf-8").count("\n")
    return dict(sorted(lines.items()))


def budgets() -> dict[str, int]:
    """Return the budget of each room, as the page has it."""
    rows = re.findall(r"^\| `([^`]+)` \| [\d,]+ \| ([\d,]+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {room: int(budget.replace(",", "")) for room, budget in rows}


def table() -> str:
    """Return the table of rooms, with no budget above what a room needs."""
    known = budgets()
    rows = []
    for room, lines in counted().items():
        need = -(-lines // 50) * 50
        rows.append(f"| `{room}` | {lines:,} | {min(known.get(room, need), need):,} |")
    total = sum(counted().values())
    return HEAD + "\n".join(rows) + f"\n\nIn all {total:,} lines.\n"


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    begin = text.index(HEAD)
    end = re.compile(r"^In all .*\n", re.MULTILINE).search(text, begin)
    assert end is not None
    PAGE.write_text(text[:begin] + table() + text[end.end() :], "utf-8")
