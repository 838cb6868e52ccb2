"""``python -m agentgym``: the command line."""

from agentgym.cli.main import main

main()
