"""A folder in GAIA's layout, with questions of our own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROWS: list[dict[str, Any]] = [
    {
        "task_id": "q-1",
        "Question": "What is the sum of the numbers in the file?",
        "Level": 1,
        "Final answer": "1042",
        "file_name": "q-1.csv",
        "Annotator Metadata": {"Steps": "Add."},
    },
    {
        "task_id": "q-2",
        "Question": "Name the primary colours in order of their letters.",
        "Level": 2,
        "Final answer": "blue, red, yellow",
        "file_name": "",
        "Annotator Metadata": {"Steps": "Think."},
    },
    {
        "task_id": "q-3",
        "Question": "Which bird eats chips at the sea?",
        "Level": "3",
        "Final answer": "seagull",
        "file_name": "",
        "Annotator Metadata": None,
    },
]


def write_gaia(folder: Path, rows: Sequence[dict[str, Any]] = tuple(ROWS)) -> Path:
    """Write the files of both splits."""
    (folder / "validation").mkdir(parents=True, exist_ok=True)
    (folder / "test").mkdir(exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "validation/metadata.jsonl").write_text(lines)
    (folder / "validation/q-1.csv").write_bytes(b"number\r\n1000\r\n42\r\n\xff")
    hidden = {**rows[-1], "task_id": "t-1", "Final answer": "?"}
    (folder / "test/metadata.jsonl").write_text(json.dumps(hidden) + "\n")
    return folder
