"""Checks of the guest book that a single query cannot express."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path


def none_left(database: Path, values: Mapping[str, object]) -> float:
    """Return 1 if the entries of a town are gone and all others of the twelve are there."""
    with closing(sqlite3.connect(database)) as book:
        left = {town for (town,) in book.execute("select town from entries")}
        removed = [town for (town,) in book.execute("select town from removed")]
    return float(values["town_town"] not in left and set(removed) == {values["town_town"]})
