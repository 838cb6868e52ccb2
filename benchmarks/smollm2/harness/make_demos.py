"""Write conversations as mini-swe-agent has them on the errand: ``python make_demos.py FILE.jsonl NUM``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))

from errand_env import Errand


def conversation(env: Errand, place: int) -> dict[str, Any]:
    """Return the messages of an episode that prints the file at once."""
    prompts = yaml.safe_load(Path(__file__).with_name("short.yaml").read_text(encoding="utf-8"))["agent"]
    observation, _ = env.reset(options={"task": place})
    name = observation[0].text.split()[-2]
    return {
        "messages": [
            {"role": "system", "content": prompts["system_template"].rstrip("\n")},
            {"role": "user", "content": observation[0].text + "\n"},
            {"role": "assistant", "content": f"```mswea_bash_command\ncat {name}\n```"},
        ]
    }


def main() -> None:
    """Write the conversations."""
    path, number = Path(sys.argv[1]), int(sys.argv[2])
    env = Errand(sandbox="process")
    with path.open("w", encoding="utf-8") as out:
        for place in range(number):
            out.write(json.dumps(conversation(env, place)) + "\n")
    env.close()


if __name__ == "__main__":
    main()
