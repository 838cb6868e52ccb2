"""Names of policies that are not trained: scripts, models, endpoints and vLLM servers."""

from __future__ import annotations

from agentgym.engine import ENDPOINT
from agentgym.errors import unknown_name
from agentgym.evals.policies import POLICIES, is_scripted, named_policy
from agentgym.trainers.engines.openai.endpoint import parse_endpoint
from agentgym.trainers.engines.vllm.address import SERVED, parse_served
from agentgym.trainers.models.sources import NAMED, check_source, is_source


def check_agents(policy: str) -> None:
    """Raise an error if a name is no policy of one attempt, or a model that the hub and its cache lack.

    Raises:
        UnknownNameError: there is no such policy; the message names those that exist.
        UsageError: the address is wrong or missing, or the hub has no such model.
    """
    if model := check_name(policy):
        check_source(model)


def check_name(policy: str) -> str:
    """Return the model that a policy's name stands for, empty for a script or an endpoint. Needs no torch.

    Raises:
        UnknownNameError, UsageError: as :func:`check_agents` does, without asking the hub.
    """
    if is_scripted(policy):
        named_policy(policy)
        return ""
    if policy.startswith(ENDPOINT):
        parse_endpoint(policy.removeprefix(ENDPOINT))
        return ""
    model = policy
    if policy.startswith(SERVED):
        model = parse_served(policy.removeprefix(SERVED)).model
    if not is_source(model):
        models = "a folder, RUN@STEP, a GGUF file, pypi:PACKAGE, a hub name"
        hint = f"or file.py:NAME, {ENDPOINT}URL, {SERVED}URL; models: {models}"
        raise unknown_name("policy", model, (*POLICIES, *NAMED), hint)
    return model
