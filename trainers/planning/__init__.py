"""The memory, tokens and disk space that a run needs, computed without running it: `agentgym train --dry-run`."""
