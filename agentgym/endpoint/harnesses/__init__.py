"""The harnesses of agentgym, one module each."""
