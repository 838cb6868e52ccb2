"""Programs that run an agent of another package, under a Python that has it; they import nothing of agentgym."""
