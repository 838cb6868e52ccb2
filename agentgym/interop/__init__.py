"""agentgym's environments, evaluations and episodes in the formats of other projects."""
