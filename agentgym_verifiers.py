"""Our environments as a taskset and a harness of verifiers, under a name that its commands can import."""

from agentgym.interop.verifiers_env import AgentgymHarness, AgentgymTaskset, load_environment

__all__ = ["AgentgymHarness", "AgentgymTaskset", "load_environment"]
