"""Programs that run an agent of another package under a Python that has it installed. They do not import agentgym."""
