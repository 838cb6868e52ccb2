"""An agent program that uses only Python's standard library and runs the model's messages in a shell.

Usage: ``python3 shell_agent.py TASK``. It stops when the model says DONE, and exits with N after ``exit N``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from typing import Any


def completion(messages: list[dict[str, Any]]) -> str:
    """Return the model's next message."""
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def main() -> None:
    """Ask for commands and run them."""
    messages = [{"role": "user", "content": sys.argv[1]}]
    while (said := completion(messages)) != "DONE":
        if said.startswith("exit "):
            sys.exit(int(said.split()[1]))
        done = subprocess.run(said, shell=True, capture_output=True, text=True, check=False)
        output = f"[{done.returncode}]\n{done.stdout}{done.stderr}"
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": output}]


if __name__ == "__main__":
    main()
