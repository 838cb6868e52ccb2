"""The policies that commands take by name: ``oracle``, ``random``, a model, or an endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console

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
    chat: dict[str, Any] = field(default_factory=dict)
    """Values in place of how the model's conversations were rendered in training."""
    context: dict[str, Any] = field(default_factory=dict)
    """Values in place of the context the model was trained with."""


def is_scripted(policy: str) -> bool:
    """Return True for a policy without a model: a registered name, ``file.py:name`` or ``module:name``."""
    from agentgym.evals.policies import POLICIES

    source, colon, name = policy.rpartition(":")
    is_dotted = all(part.isidentifier() for part in source.split("."))
    is_own = bool(colon) and name.isidentifier() and (source.endswith(".py") or is_dotted)
    return (is_own and source not in ("openai", "pypi", "vllm")) or (not colon and policy in POLICIES)


def check_policy(policy: str, plan: SamplingPlan) -> None:
    """Refuse what is no policy, or cannot play so.

    Raises:
        UnknownNameError: naming what there is.
        UsageError: no address, or a plan that is not for endpoints.
        MissingExtraError: models need an extra.
    """
    from agentgym.cli.run_dirs import need_train_extra
    from agentgym.errors import UsageError, unknown_name

    if is_scripted(policy):
        from agentgym.evals.policies import named_policy

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
    from agentgym.evals.policies import POLICIES
    from agentgym.trainers.models.sources import NAMED, check_source, is_source

    model = policy
    if policy.startswith(SERVED):
        from agentgym.trainers.models.served import parse_served

        model = parse_served(policy.removeprefix(SERVED)).model
    if not is_source(model):
        hint = f"or file.py:NAME, {ENDPOINT}URL, {SERVED}URL; models: a folder, a GGUF file, pypi:PACKAGE, a hub name"
        raise unknown_name("policy", model, (*POLICIES, *NAMED), hint)
    check_source(model)


async def open_agents(
    policy: str, plan: SamplingPlan, num_slots: int
) -> tuple[MakeAgent, Callable[[], Awaitable[None]]]:
    """Agents that play the policy, and what frees it.

    Raises:
        UsageError: the model cannot be loaded, or its context has no room.
        ConfigError, EngineError: no vLLM server can be used.
    """

    async def nothing() -> None:
        pass

    if is_scripted(policy):
        from agentgym.evals.policies import named_policy

        return named_policy(policy), nothing
    from agentgym.engine import SamplingParams
    from agentgym.errors import UsageError
    from agentgym.rollout.context import FULL

    sampling = SamplingParams(
        temperature=plan.temperature,
        max_new_tokens=plan.max_new_tokens,
        max_thinking_tokens=plan.max_thinking_tokens,
    )
    if policy.startswith(ENDPOINT):
        from agentgym.trainers.engines.openai.endpoint import parse_endpoint
        from agentgym.trainers.engines.openai.http import OpenAIClient, endpoint_agents

        client = OpenAIClient(parse_endpoint(policy.removeprefix(ENDPOINT)), num_slots)
        try:
            await client.check()
        except UsageError:
            await client.close()
            raise
        return endpoint_agents(client, sampling, FULL.changed(plan.context).examples), client.close
    from agentgym.trainers.models.policy import open_policy

    status = Console(stderr=True, highlight=False)
    changes: dict[str, Any] = {
        "max_context_tokens": plan.max_context_tokens,
        "chat": plan.chat,
        "context": plan.context,
    }
    if policy.startswith(SERVED):
        from agentgym.trainers.models.served import open_served, parse_served

        opened = await open_served(parse_served(policy.removeprefix(SERVED)), **changes, say=status.print)
    else:
        opened = open_policy(policy, num_slots=num_slots, **changes)
    for note in opened.renderer.notes:
        status.print(f"note: the model: {note}")
    return opened.agents(sampling), opened.engine.close


def policy_facts(policy: str) -> dict[str, str]:
    """Return what identifies a policy, for the journal of an evaluation: digests of a model's files or of a script.

    A hub name whose files are not at hand, and a model behind an endpoint, are known by name alone.
    """
    from pathlib import Path

    from agentgym.rollout.journal import file_digest, model_facts

    if is_scripted(policy):
        source = Path(policy.rpartition(":")[0])
        return {"script": file_digest(source)} if source.is_file() else {}
    if policy.startswith(ENDPOINT):
        return {}
    from agentgym.trainers.models.sources import local_model

    model = policy
    if policy.startswith(SERVED):
        from agentgym.trainers.models.served import parse_served

        model = parse_served(policy.removeprefix(SERVED)).model
    folder = Path(local_model(model))
    return model_facts(folder) if folder.is_dir() else {}
