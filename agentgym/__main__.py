"""Entry point of ``python -m agentgym``, which runs the command line."""

from agentgym.cli.main import main

main()
