"""Shell commands that resolve an issue of SWE-v0, for agents that work in a shell."""

from __future__ import annotations

from agentgym.envs.code.swe import SWEEnv
from agentgym.types import Task


def solving_commands(task: Task) -> list[str]:
    """Return shell commands that look at the repository and write the files as the oracle leaves them."""
    env = SWEEnv(sandbox="process")
    env.reset(options={"task": task})
    before = dict(env.seen_work())
    while (action := env.oracle()).calls[0].name != "submit":  # type: ignore[union-attr]
        env.step(action)
    after = dict(env.seen_work())
    env.close()
    changed = [(path, text) for path, text in after.items() if before.get(path) != text]
    assert changed
    return ["ls", *(f"cat > {path} <<'END'\n{text.rstrip()}\nEND" for path, text in changed)]
