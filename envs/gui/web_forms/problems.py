"""The problems of WebForms: the page's data, the instruction and the goal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final

import numpy as np

_FIRST = ("Ada", "Ben", "Cleo", "Dina", "Emil", "Fay", "Gus", "Hana", "Ivo", "June", "Karl", "Lena", "Milo", "Nora")
_LAST = ("Abel", "Bose", "Chen", "Diaz", "Ek", "Falk", "Gomez", "Holm", "Ito", "Jung", "Kaya", "Lund", "Moss", "Noor")
_ROOMS = ("North", "South", "East", "West", "Garden", "Tower")
_TOPICS = ("Art", "Music", "Sport", "Science", "Travel", "Cooking")
_CHORES = ("Order paper", "Fix the lamp", "Call the bank", "Water the plants", "Book a room", "Clean the fridge")
_COLOURS = ("red", "blue", "green", "black", "white", "yellow", "brown", "grey")
_PARTS = ("bolt", "cable", "hinge", "lever", "nut", "panel", "ring", "screw", "spring", "wheel")
_SWITCHES = ("Sound", "Alerts", "Updates", "Location", "Camera", "Sync")
_THEMES = ("Light", "Dark", "Sepia", "High contrast")
_FIRST_DAY = date(2026, 1, 1)  # the page's clock begins there


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to do on one page."""

    page: str
    """Name of a page of ``sites/web_forms/app.js``."""
    instruction: str
    data: Mapping[str, Any]
    """Data of the page, which do not contain the goal."""
    goal: Mapping[str, object]
    """Values that must be submitted, or the ``answer`` that must be given."""


def make_problem(kind: str, rng: np.random.Generator) -> Problem:
    """Return a problem of a kind of :data:`KINDS`.

    Example:
        >>> make_problem("calendar", np.random.default_rng(0)).instruction
        'Book the room for 13 September 2026.'
    """
    return KINDS[kind](rng)


def _pick(rng: np.random.Generator, names: tuple[str, ...], count: int) -> list[str]:
    return [names[int(at)] for at in rng.choice(len(names), count, replace=False)]


def _one(rng: np.random.Generator, names: tuple[str, ...]) -> str:
    return names[int(rng.integers(len(names)))]


def _person(rng: np.random.Generator) -> str:
    return f"{_one(rng, _FIRST)} {_one(rng, _LAST)}"


def _day(rng: np.random.Generator) -> date:
    return _FIRST_DAY + timedelta(days=int(rng.integers(300)))


def _form(rng: np.random.Generator) -> Problem:
    name = _person(rng)
    topics = sorted(_pick(rng, _TOPICS, 4), key=_TOPICS.index)
    asked = sorted(_pick(rng, tuple(topics), 2), key=topics.index)
    goal = {
        "Name": name,
        "Email": f"{name.split()[0].lower()}@example.org",
        "Arrival": _day(rng).isoformat(),
        "Room": _one(rng, _ROOMS),
        "Newsletter": _one(rng, ("Daily", "Weekly", "Never")),
        "Topics": asked,
        "Remarks": f"{_one(rng, _COLOURS)} {_one(rng, _PARTS)}",
    }
    fields = [
        {"label": "Name", "kind": "text"},
        {"label": "Email", "kind": "email"},
        {"label": "Arrival", "kind": "date"},
        {"label": "Room", "kind": "select", "options": list(_ROOMS)},
        {"label": "Newsletter", "kind": "radio", "options": ["Daily", "Weekly", "Never"]},
        {"label": "Topics", "kind": "checks", "options": topics},
        {"label": "Remarks", "kind": "long"},
    ]
    wished = "; ".join(f"{label}: {', '.join(v) if isinstance(v, list) else v}" for label, v in goal.items())
    return Problem("form", f"Fill in the form and send it. {wished}.", {"fields": fields}, goal)


def _staff(rng: np.random.Generator) -> dict[str, Any]:
    names = list(dict.fromkeys(_person(rng) for _ in range(12)))[:8]
    ages = rng.choice(np.arange(20, 65), len(names), replace=False)
    phones = rng.choice(np.arange(1000, 10_000), len(names), replace=False)
    rows = [[name, int(age), int(phone)] for name, age, phone in zip(names, ages, phones, strict=True)]
    return {"columns": ["Name", "Age", "Phone"], "rows": rows}


def _remove(rng: np.random.Generator) -> Problem:
    data = _staff(rng)
    which, choose = (("oldest", max), ("youngest", min))[int(rng.integers(2))]
    name = choose(data["rows"], key=lambda row: row[1])[0]
    return Problem("table", f"Remove the {which} person from the table.", data, {"removed": name})


def _look_up(rng: np.random.Generator) -> Problem:
    data = _staff(rng)
    row = data["rows"][int(rng.integers(len(data["rows"])))]
    return Problem("table", f"What is the phone number of {row[0]}? Answer with done.", data, {"answer": str(row[2])})


def _calendar(rng: np.random.Generator) -> Problem:
    day = _day(rng)
    return Problem("calendar", f"Book the room for {day.day} {day:%B %Y}.", {}, {"date": day.isoformat()})


def _board(rng: np.random.Generator) -> Problem:
    cards = _pick(rng, _CHORES, 4)
    todo, done = cards[:3], cards[3:]
    moved = sorted(_pick(rng, tuple(todo), int(rng.integers(1, 3))))
    goal = {"To do": sorted(set(todo) - set(moved)), "Done": sorted([*done, *moved])}
    names = " and ".join(f'"{name}"' for name in moved)
    return Problem("board", f"Drag {names} to Done, then save.", {"columns": {"To do": todo, "Done": done}}, goal)


def _list(rng: np.random.Generator) -> Problem:
    items = [f"{colour} {part}" for colour in _COLOURS for part in _PARTS]
    items = [items[int(at)] for at in rng.permutation(len(items))]
    wanted = items[int(rng.integers(len(items)))]
    return Problem("list", f"Click the {wanted} in the list.", {"items": items}, {"ordered": wanted})


def _frame(rng: np.random.Generator) -> Problem:
    code = str(int(rng.integers(10_000, 100_000)))
    return Problem(
        "frame", "Let the page show the code, enter it at the door, and open it.", {"code": code}, {"code": code}
    )


def _settings(rng: np.random.Generator) -> Problem:
    names = sorted(_pick(rng, _SWITCHES, 4))
    before = {name: bool(rng.integers(2)) for name in names}
    changed = _pick(rng, tuple(names), 2)
    after = {name: not on if name in changed else on for name, on in before.items()}
    theme = _one(rng, _THEMES[1:])
    wished = ", ".join(f"{name} {'on' if after[name] else 'off'}" for name in sorted(changed))
    text = f"Switch {wished}, choose the theme {theme}, and save."
    return Problem("settings", text, {"switches": before, "themes": list(_THEMES)}, {"theme": theme, "switches": after})


KINDS: Final[Mapping[str, Callable[[np.random.Generator], Problem]]] = {
    "form": _form,
    "remove": _remove,
    "look_up": _look_up,
    "calendar": _calendar,
    "board": _board,
    "list": _list,
    "frame": _frame,
    "settings": _settings,
}
"""The kinds of problems by name."""
