"""agentgym's own scorers, one file each; importing them registers them."""
