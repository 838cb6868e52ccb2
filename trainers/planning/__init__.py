"""The needs of a run, by arithmetic: `agentgym train --dry-run`."""
