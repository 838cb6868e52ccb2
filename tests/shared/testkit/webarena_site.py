"""Tasks in WebArena's schema on the guestbook, which acts for its shop."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from agentgym.envs.gui.web_app.process import AppProcess
from agentgym.envs.gui.web_app.spec import APPS


def record(number: int, **changed: Any) -> dict[str, Any]:
    """A task in WebArena's schema."""
    made: dict[str, Any] = {
        "sites": ["shopping"],
        "task_id": number,
        "require_login": False,
        "storage_state": None,
        "start_url": "__SHOPPING__",
        "geolocation": None,
        "intent_template": "",
        "instantiation_dict": {},
        "intent": "Do it.",
        "require_reset": False,
        "eval": {"eval_types": ["string_match"], "reference_answers": {"must_include": ["12"]}},
        "intent_template_id": 0,
    }
    return {**made, **changed}


def graded(kinds: list[str], **more: Any) -> dict[str, Any]:
    return {"eval_types": kinds, "reference_answers": None, "reference_url": "", "program_html": [], **more}


SIGNED = {
    "url": "__SHOPPING__/",
    "locator": "",
    "required_contents": {"must_include": ["ann abel |OR| nobody", "Oslo"]},
}
NUM_ROWS = {
    "url": "last",
    "locator": "document.querySelectorAll('table tr').length",
    "required_contents": {"exact_match": "13"},
}
TASKS = [
    record(0, intent="How many entries are there?"),
    record(1, intent="See it.", eval=graded(["url_match"], reference_url="__SHOPPING__/health |OR| __SHOPPING__/x")),
    record(2, intent="Sign as Ann Abel from Oslo.", eval=graded(["program_html"], program_html=[SIGNED, NUM_ROWS])),
    record(3, eval={"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["12"]}}),
    record(4, sites=["gitlab"]),
    record(5, eval=graded(["program_html"], program_html=[{**SIGNED, "url": "func:shopping_get_latest_order_url()"}])),
    record(6, storage_state="./.auth/shopping_state.json", start_url="__SHOPPING__ |AND| __SHOPPING__/health"),
]  # fmt: skip


def written(path: Path, tasks: list[dict[str, Any]] = TASKS) -> Path:
    path.write_text(json.dumps(tasks))
    return path


def arguments_of(book: AppProcess, folder: Path, tasks: list[dict[str, Any]] = TASKS) -> dict[str, Any]:
    """Return the environment's arguments for a running guestbook."""
    host = f"127.0.0.1:{book.port}"
    cookie = {"name": "who", "value": "ann", "domain": "127.0.0.1", "path": "/"}
    state = {
        "cookies": [cookie],
        "origins": [{"origin": f"http://{host}", "localStorage": [{"name": "a", "value": "b"}]}],
    }
    (folder / "shopping_state.json").write_text(json.dumps(state))
    init = f"rm -f {book.database} && {sys.executable} {APPS / 'guestbook/app.py'} init {book.database.parent}"
    return {
        "tasks_file": written(folder / "test.raw.json", tasks),
        "addresses": {"shopping": f"http://{host}"},
        "auth_dir": folder,
        "reset_command": ["sh", "-c", init],
    }
