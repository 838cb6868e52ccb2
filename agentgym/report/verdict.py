"""The verdict of a training run: what it said at its end, and the notes that it printed on the way."""

from __future__ import annotations

from pathlib import Path

from agentgym.rollout import journal
from agentgym.rollout.record import read_json_object


def verdict_of(folder: Path) -> tuple[list[str], list[str]]:
    """Return the lines that a run said at its end, none before it, and its notes, each once.

    Raises:
        CorruptDataError: the file or the journal cannot be read.
    """
    found = read_json_object(folder / journal.VERDICT) if (folder / journal.VERDICT).is_file() else {}
    lines = [str(line) for line in found.get("lines", ())]
    return lines, list(dict.fromkeys(journal.remarks(folder)))
