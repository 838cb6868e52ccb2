"""The harnesses of agentgym, one per module."""
