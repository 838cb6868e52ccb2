"""The architecture page: each life takes at most eight steps, and every file that it names exists."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_each_life_takes_at_most_eight_steps_in_files_that_exist() -> None:
    lives = re.findall(r"^### The life of a (\w+)\n\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in lives] == ["task", "reward", "token", "weight"]
    for _, steps in lives:
        numbered = re.findall(r"^(\d)\. (.*)$", steps, re.MULTILINE)
        assert [int(number) for number, _ in numbered] == list(range(1, len(numbered) + 1)) and len(numbered) <= 8
        for _, step in numbered:
            files = re.findall(r"`([\w/]+\.py)`", step)
            assert files and all((ROOT / file).is_file() for file in files), step


def test_the_map_names_rooms_that_exist() -> None:
    named = re.findall(r"^\| (`.*?`) \|", PAGE.split("## The map")[1].split("## ")[0], re.MULTILINE)
    rooms = [
        room for cell in named for room in re.findall(r"`((?:agentgym|trainers|envs|tools|sandboxes)/[\w/]*)`", cell)
    ]
    assert len(rooms) > 20 and all((ROOT / room).exists() for room in rooms)


def test_each_room_keeps_to_its_budget_of_lines() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "site" / "rooms.py"))
    counted, budgets = page["counted"](), page["budgets"]()
    assert counted.keys() == budgets.keys(), "python docs/site/rooms.py lists rooms that are new, and drops others"
    over = {room: lines - budgets[room] for room, lines in counted.items() if lines > budgets[room]}
    assert not over, "lines above the budgets in docs/architecture.md"
