"""What a run would need, by arithmetic: `agentgym train --dry-run`."""
