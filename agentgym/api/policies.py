"""Policies, given by name (``oracle``, ``random``, a model, an endpoint) or as a user's function."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.endpoint.harness import HarnessConfig
from agentgym.engine import SamplingParams
from agentgym.errors import UsageError, unknown_name
from agentgym.evals.attempts import Attempts, inner_policy, open_attempts, read_verifier
from agentgym.evals.policies import POLICIES, named_policy
from agentgym.evals.scoring import Scoring
from agentgym.rollout.context import FULL
from agentgym.rollout.journal import file_digest, model_facts, note_remark
from agentgym.trainers.models.sources import NAMED, check_source, is_source, local_model
from agentgym.visible_text import visible

if TYPE_CHECKING:
    from agentgym.rollout.agent import MakeAgent

ENDPOINT = "openai:"
SERVED = "vllm:"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """Sampling and rendering settings of a model; scripted policies ignore them."""

    temperature: float = 1.0
    max_new_tokens: int = 64
    max_thinking_tokens: int = 0
    max_context_tokens: int = 0
    chat: dict[str, object] = field(default_factory=dict)
    """Changes to the rendering of conversations that the model was trained with."""
    context: dict[str, object] = field(default_factory=dict)
    """Changes to the context settings that the model was trained with."""
    harness: dict[str, object] = field(default_factory=dict)
    """Settings of the agent program that runs the episode (``HarnessConfig``); empty for agentgym's own loop."""
    verify: dict[str, object] = field(default_factory=dict)
    """Settings of the scorer that chooses among several attempts (``best:``, ``retry:``, ``summary:``)."""


def note_on_stderr(text: str) -> None:
    """Print a remark on standard error, so that it does not mix with results."""
    print(visible(text), file=sys.stderr)


def is_scripted(policy: str) -> bool:
    """Return True for a policy without a model: a registered name, ``file.py:name`` or ``module:name``."""
    policy = inner_policy(policy)

    source, colon, name = policy.rpartition(":")
    is_dotted = all(part.isidentifier() for part in source.split("."))
    is_own = bool(colon) and name.isidentifier() and (source.endswith(".py") or is_dotted)
    return (is_own and source not in ("openai", "pypi", "vllm")) or (not colon and policy in POLICIES)


def check_policy(policy: str, plan: SamplingPlan) -> None:
    """Raise an error if a name is no policy, or if the policy does not support the plan.

    Raises:
        UnknownNameError: there is no such policy; the message names those that exist.
        UsageError: the address is missing, or endpoints do not support the plan.
        MissingExtraError: the extra that models need is not installed.
    """
    from agentgym.api.run_dirs import need_train_extra

    plan = _check_attempts(policy, plan)
    policy = inner_policy(policy)
    if plan.harness:
        _check_harness(policy, plan)
    if is_scripted(policy):
        named_policy(policy)
        return
    if policy.startswith(ENDPOINT):
        from agentgym.trainers.engines.openai.endpoint import parse_endpoint

        endpoint = parse_endpoint(policy.removeprefix(ENDPOINT))
        is_example = endpoint.tools == "text" and set(plan.context) <= {"example_turns", "examples"}
        if plan.chat or plan.max_context_tokens or (plan.context and not is_example) or plan.max_thinking_tokens:
            raise UsageError(
                "an endpoint renders conversations and reads calls itself; leave out --codec, chat.KEY=VALUE, "
                "context.KEY=VALUE, --max-context-tokens and --max-thinking-tokens, and set them where the server is "
                "started (context.example_turns works with openai:URL?tools=text)"
            )
        return
    need_train_extra("evaluating a model")
    model = policy
    if policy.startswith(SERVED):
        from agentgym.trainers.placement.served import parse_served

        model = parse_served(policy.removeprefix(SERVED)).model
    if not is_source(model):
        hint = f"or file.py:NAME, {ENDPOINT}URL, {SERVED}URL; models: a folder, a GGUF file, pypi:PACKAGE, a hub name"
        raise unknown_name("policy", model, (*POLICIES, *NAMED), hint)
    check_source(model)


def _check_attempts(policy: str, plan: SamplingPlan) -> SamplingPlan:
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


def _check_harness(policy: str, plan: SamplingPlan) -> None:
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


async def open_agents(
    policy: str,
    plan: SamplingPlan,
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
        return await _open_policy(policy, plan, num_slots, say)
    await Scoring.read(plan.verify).check_ready()
    inner, close_inner = await _open_policy(how.policy, replace(plan, verify={}), num_slots, say)
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


async def _open_policy(
    policy: str, plan: SamplingPlan, num_slots: int, say: Callable[[str], None]
) -> tuple[MakeAgent, Callable[[], Awaitable[None]]]:
    """Return the same as :func:`open_agents`, for a policy that makes one attempt."""

    async def nothing() -> None:
        pass

    if is_scripted(policy):
        return named_policy(policy), nothing
    sampling = SamplingParams(
        temperature=plan.temperature,
        max_new_tokens=plan.max_new_tokens,
        max_thinking_tokens=plan.max_thinking_tokens,
    )
    if policy.startswith(ENDPOINT):
        from agentgym.trainers.engines.openai.endpoint import parse_endpoint
        from agentgym.trainers.engines.openai.http import OpenAIClient, endpoint_agents

        client = OpenAIClient(parse_endpoint(policy.removeprefix(ENDPOINT)), num_slots, say=say)
        try:
            await client.check()
        except UsageError:
            await client.close()
            raise
        return endpoint_agents(client, sampling, FULL.changed(plan.context).examples), client.close
    from agentgym.trainers.placement.policy import open_policy

    changes: dict[str, Any] = {
        "max_context_tokens": plan.max_context_tokens,
        "chat": plan.chat,
        "context": plan.context,
    }
    if policy.startswith(SERVED):
        from agentgym.trainers.placement.served import open_served, parse_served

        opened = await open_served(parse_served(policy.removeprefix(SERVED)), **changes, say=say)
    else:
        opened = open_policy(policy, num_slots=num_slots, **changes, say=say)
    for note in opened.renderer.notes:
        say(f"note: {note}")
    if not plan.harness.get("name"):
        return opened.agents(sampling), opened.engine.close
    agents = opened.agents(sampling, HarnessConfig.of(plan.harness))

    async def close() -> None:
        await agents.close()  # type: ignore[attr-defined]
        await opened.engine.close()

    return agents, close


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
        from agentgym.trainers.placement.served import parse_served

        model = parse_served(policy.removeprefix(SERVED)).model
    folder = Path(local_model(model))
    return model_facts(folder) if folder.is_dir() else {}
