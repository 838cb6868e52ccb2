"""Policies, given by name (``oracle``, ``random``, a model, an endpoint) or as a user's function."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.endpoint.harness import HarnessConfig
from agentgym.engine import ENDPOINT
from agentgym.errors import UsageError
from agentgym.evals.attempts import Attempts, inner_policy, open_attempts, read_verifier
from agentgym.evals.config import OF_SERVERS, EvalConfig
from agentgym.evals.policies import is_scripted
from agentgym.evals.scoring import Scoring
from agentgym.render.config import ChatConfig
from agentgym.rollout.context import FULL
from agentgym.rollout.journal import file_digest, model_facts, note_remark
from agentgym.trainers.engines.names import check_agents, check_name
from agentgym.trainers.engines.vllm.address import SERVED
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.placement.agents import open_policy_agents
from agentgym.visible_text import visible

if TYPE_CHECKING:
    from agentgym.rollout.agent import MakeAgent


def note_on_stderr(text: str) -> None:
    """Print a remark on standard error, so that it does not mix with results."""
    print(visible(text), file=sys.stderr)


def check_policy(policy: str, plan: EvalConfig) -> None:
    """Raise an error if a name is no policy, or if the policy does not support the plan.

    Raises:
        UnknownNameError: there is no such policy; the message names those that exist.
        UsageError: the address is missing, or endpoints do not support the plan.
        MissingExtraError: the extra that models need is not installed.
    """
    from agentgym.api.run_dirs import need_train_extra

    FULL.changed(plan.context)  # wrong keys are refused before a model is loaded
    ChatConfig().changed(plan.chat)
    plan = _check_attempts(policy, plan)
    policy = inner_policy(policy)
    if plan.harness:
        _check_harness(policy, plan)
    if is_scripted(policy):
        check_agents(policy)
        return
    if policy.startswith(ENDPOINT):
        from agentgym.trainers.engines.openai.endpoint import parse_endpoint

        endpoint = parse_endpoint(policy.removeprefix(ENDPOINT))
        is_example = endpoint.tools == "text" and set(plan.context) <= {"example_turns", "examples"}
        if any(getattr(plan, name) for name in OF_SERVERS if name != "context" or not is_example):
            raise UsageError(
                "an endpoint renders conversations and reads calls itself; leave out --codec, chat.KEY=VALUE, "
                "context.KEY=VALUE, --max-context-tokens and --max-thinking-tokens, and set them where the server is "
                "started (context.example_turns works with openai:URL?tools=text)"
            )
        return
    check_name(policy)  # a misspelt name is told first
    need_train_extra("evaluating a model")
    check_agents(policy)


def _check_attempts(policy: str, plan: EvalConfig) -> EvalConfig:
    """Check the settings of a policy with several attempts, and return the plan of a single attempt."""
    how = Attempts.read(policy)
    if how is None:
        if plan.verify:
            raise UsageError("verify.KEY=VALUE is for a policy of several attempts, as in best:POLICY,attempts=4")
        return plan
    if how.rule(plan.verify) == "scorer":
        read_verifier(plan.verify)
    if plan.harness.get("name"):
        raise UsageError(f"{how.way}: plays a policy turn by turn; leave --harness out")
    return replace(plan, verify={})


def _check_harness(policy: str, plan: EvalConfig) -> None:
    harness = HarnessConfig.of(plan.harness)
    if not harness.name:
        if "name" not in plan.harness:
            raise UsageError("harness.KEY=VALUE needs --harness NAME")
        return  # an empty name turns off the harness of a training run
    if is_scripted(policy) or policy.startswith(ENDPOINT):
        raise UsageError(
            f"--harness needs a model whose tokens agentgym samples and records (a folder, pypi:PACKAGE, "
            f"{SERVED}URL, smollm2), not {policy!r}"
        )
    harness.require_packages()


async def nothing() -> None:
    """Free the resources of a policy that has none."""


async def open_agents(
    policy: str,
    plan: EvalConfig,
    num_slots: int,
    say: Callable[[str], None] = note_on_stderr,
    folder: Path | None = None,
) -> tuple[MakeAgent, Callable[[], Awaitable[None]]]:
    """Return a function that makes agents of a policy, and a coroutine function that frees their resources.

    Args:
        num_slots: number of episodes that run at the same time.
        say: receives remarks about the model, one line each.
        folder: folder of the evaluation, in which a scorer of several attempts may cache its results. Its journal keeps
            the remarks.

    Raises:
        UsageError: the model cannot be loaded, or its context is too small.
        ConfigError: the settings do not fit the vLLM server.
        EngineError: no vLLM server answers.
    """
    if folder is not None:
        say = _kept_in(folder, say)
    if (how := Attempts.read(policy)) is None:
        return await open_policy_agents(policy, plan, num_slots, say)
    await Scoring.read(plan.verify).check_ready()
    inner, close_inner = await open_policy_agents(how.policy, replace(plan, verify={}), num_slots, say)
    player = open_attempts(inner, how, plan.verify, folder)

    async def close() -> None:
        await player.close()
        await close_inner()

    return player, close


def _kept_in(folder: Path, say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that passes remarks on and keeps them in the journal of an evaluation."""

    def keep(text: str) -> None:
        say(text)
        note_remark(folder, text.removeprefix("note: "))

    return keep


def policy_facts(policy: str) -> dict[str, str]:
    """Return facts that identify a policy in an evaluation's journal: digests of a model's files or of a script.

    A model behind an endpoint, or a hub name whose files have not been downloaded, is identified by its name only.
    """
    policy = inner_policy(policy)
    if is_scripted(policy):
        source = Path(policy.rpartition(":")[0])
        return {"script": file_digest(source)} if source.is_file() else {}
    if policy.startswith(ENDPOINT):
        return {}
    model = policy
    if policy.startswith(SERVED):
        from agentgym.trainers.engines.vllm.address import parse_served

        model = parse_served(policy.removeprefix(SERVED)).model
    folder = Path(local_model(model))
    return model_facts(folder) if folder.is_dir() else {}
