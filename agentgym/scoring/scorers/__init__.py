"""agentgym's own scorers, one per module; importing a module registers its scorers."""
