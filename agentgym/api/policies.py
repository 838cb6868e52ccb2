"""Policies by name (``oracle``, ``random``, a model, an endpoint), or as a function of one's own."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """Values in place of how the model's conversations were rendered in training."""
    context: dict[str, object] = field(default_factory=dict)
    """Values in place of the context the model was trained with."""
    harness: dict[str, object] = field(default_factory=dict)
    """The agent program that plays (``HarnessConfig``); empty for the loop of agentgym."""
    verify: dict[str, object] = field(default_factory=dict)
    """The scorer by which a policy of several attempts chooses one (``best:``, ``retry:``, ``summary:``)."""


def note_on_stderr(text: str) -> None:
    """Print a remark where it is not mistaken for a result."""
    print(text, file=sys.stderr)


def is_scripted(policy: str) -> bool:
    """Return True for a policy without a model: a registered name, ``file.py:name`` or ``module:name``."""
    from agentgym.evals.attempts import inner_policy
    from agentgym.evals.policies import POLICIES

    policy = inner_policy(policy)

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
    from agentgym.api.run_dirs import need_train_extra
    from agentgym.errors import UsageError, unknown_name
    from agentgym.evals.attempts import inner_policy

    plan = _check_attempts(policy, plan)
    policy = inner_policy(policy)
    if plan.harness:
        _check_harness(policy, plan)
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


def _check_attempts(policy: str, plan: SamplingPlan) -> SamplingPlan:
    """Check how a policy attempts a task, and return the plan of a single attempt."""
    from agentgym.errors import UsageError
    from agentgym.evals.attempts import Attempts, read_verifier

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
    from agentgym.endpoint.harness import HarnessConfig, need_extra
    from agentgym.errors import UsageError

    if not HarnessConfig.of(plan.harness).name:
        if "name" not in plan.harness:
            raise UsageError("harness.KEY=VALUE needs --harness NAME")
        return  # an empty name plays without the harness of a training run
    need_extra("--harness", "serve", "fastapi", "uvicorn")
    if is_scripted(policy) or policy.startswith(ENDPOINT):
        raise UsageError(
            f"--harness needs a model whose tokens agentgym samples and records (a folder, pypi:PACKAGE, "
            f"{SERVED}URL, smollm2), not {policy!r}"
        )


async def open_agents(
    policy: str,
    plan: SamplingPlan,
    num_slots: int,
    say: Callable[[str], None] = note_on_stderr,
    folder: Path | None = None,
) -> tuple[MakeAgent, Callable[[], Awaitable[None]]]:
    """Return the agents of a policy, and the coroutine function that frees what they hold.

    Args:
        num_slots: episodes that are played at the same time.
        say: takes remarks about the model, one line each.
        folder: of the evaluation, where the scorer of a policy of several attempts may remember.

    Raises:
        UsageError: the model cannot be loaded, or its context has no room.
        ConfigError, EngineError: no vLLM server can be used.
    """

    from agentgym.evals.attempts import Attempts, open_attempts

    if (how := Attempts.read(policy)) is None:
        return await _open_policy(policy, plan, num_slots, say)
    inner, close_inner = await _open_policy(how.policy, replace(plan, verify={}), num_slots, say)
    player = open_attempts(inner, how, plan.verify, folder)

    async def close() -> None:
        await player.close()
        await close_inner()

    return player, close


async def _open_policy(
    policy: str, plan: SamplingPlan, num_slots: int, say: Callable[[str], None]
) -> tuple[MakeAgent, Callable[[], Awaitable[None]]]:
    """Return the agents of a policy that makes one attempt, as :func:`open_agents` does."""

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

    changes: dict[str, Any] = {
        "max_context_tokens": plan.max_context_tokens,
        "chat": plan.chat,
        "context": plan.context,
    }
    if policy.startswith(SERVED):
        from agentgym.trainers.models.served import open_served, parse_served

        opened = await open_served(parse_served(policy.removeprefix(SERVED)), **changes, say=say)
    else:
        opened = open_policy(policy, num_slots=num_slots, **changes)
    for note in opened.renderer.notes:
        say(f"note: the model: {note}")
    if not plan.harness.get("name"):
        return opened.agents(sampling), opened.engine.close
    from agentgym.endpoint.harness import HarnessConfig

    agents = opened.agents(sampling, HarnessConfig.of(plan.harness))

    async def close() -> None:
        await agents.close()  # type: ignore[attr-defined]
        await opened.engine.close()

    return agents, close


def policy_facts(policy: str) -> dict[str, str]:
    """Return what identifies a policy, for the journal of an evaluation: digests of a model's files or of a script.

    A hub name whose files are not at hand, and a model behind an endpoint, are known by name alone.
    """
    from agentgym.evals.attempts import inner_policy
    from agentgym.rollout.journal import file_digest, model_facts

    policy = inner_policy(policy)
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
