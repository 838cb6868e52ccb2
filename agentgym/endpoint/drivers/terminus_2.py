"""Run Terminus-2 of harbor in the sandbox where it works: ``python -c SOURCE INSTRUCTION``, in the workspace."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harbor.agents.terminus_2.terminus_2 import Terminus2
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext


class Here:
    """This sandbox, as far as Terminus-2 uses an environment of harbor."""

    default_user = None
    session_id = "agentgym"

    async def exec(self, command: str, timeout_sec: float | None = None, **_: Any) -> ExecResult:
        """Run a shell command and return its output."""
        process = await asyncio.create_subprocess_shell(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        async with asyncio.timeout(timeout_sec):
            said, complained = await process.communicate()
        output = (said.decode(errors="replace"), complained.decode(errors="replace"))
        return ExecResult(stdout=output[0], stderr=output[1], return_code=process.returncode or 0)


async def main(instruction: str, logs: Path) -> None:
    """Run the agent until it declares the task complete."""
    agent = Terminus2(
        logs_dir=logs,
        model_name=f"openai/{os.environ['OPENAI_MODEL']}",
        api_base=os.environ["OPENAI_BASE_URL"],
        model_info={"max_input_tokens": 10**6, "max_output_tokens": 10**6},
        collect_rollout_details=True,
        enable_summarize=False,
        record_terminal_session=False,
    )
    await agent.setup(Here())
    await agent.run(instruction, Here(), AgentContext())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="terminus-") as folder:
        os.environ.pop("LD_LIBRARY_PATH", None)  # only this Python needs it, and not the commands that it runs
        os.environ["TMUX_TMPDIR"] = folder  # sessions of other episodes on this machine have the same name
        try:
            asyncio.run(main(sys.argv[1], Path(folder)))
        finally:
            subprocess.run(["tmux", "kill-server"], capture_output=True, check=False)
