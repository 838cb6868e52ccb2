"""Programs that run an agent under a Python that has it installed. They do not import agentgym."""
