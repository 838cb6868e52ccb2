"""A folder in the layout of AgentBench's databases, with tasks of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TABLE = {
    "table_name": "Film ratings",
    "table_info": {
        "columns": [{"name": "Title", "type": "TEXT"}, {"name": "To par", "type": "INT"}],
        "rows": [["Emma", "7"], ["Dracula", "9"], ["Walden", 10]],
    },
}


def row(kind: str, label: list[str], **more: Any) -> dict[str, Any]:
    return {
        "description": "What is asked.",
        "label": label,
        "table": TABLE,
        "type": [kind],
        "add_description": "The name of this table is Film ratings.",
        **more,
    }


ADDED = "INSERT INTO `Film ratings` (Title, `To par`) VALUES ('Ulysses', '3')"
ROWS = [
    row("counting", ["3.0"]),
    row("other", ["Emma", "Walden"], evidence="Films are books."),
    row("INSERT", [ADDED], answer_md5="[('PLACE',)]"),
    row("UPDATE", ["UPDATE `Film ratings` SET `To par` = CONCAT('1', '2')"], answer_md5=f"[('{'0' * 32}',)]"),
]


def md5_after(statement: str) -> str:
    """The hash as MySQL's own functions are documented, written out for the three or four rows."""
    from hashlib import md5

    rows = [("Emma", "7"), ("Dracula", "9"), ("Walden", "10"), *([("Ulysses", "3")] if statement else [])]
    parts = sorted(md5(",".join(one).encode()).hexdigest()[:5] for one in rows)
    return md5(",".join(parts).encode()).hexdigest()


def write_agentbench(folder: Path) -> Path:
    """Write the tasks of both splits."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(one) + "\n" for one in ROWS).replace("PLACE", md5_after(ADDED))
    (folder / "standard.jsonl").write_text(text)
    (folder / "dev.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    return folder
