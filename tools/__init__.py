"""Tools for agents, each handed the sandbox or client it works with."""
