"""Rollout strategies: the tasks of a step, their numbers of episodes, and the length, start, hints and replay of
episodes.

There are eight families: task sources, budgets, horizons, branchings, prunings, guidance, replays and programs
(:mod:`.component`). Keys such as ``strategy.tasks`` and ``strategy.program`` of a training configuration each name one.
``agentgym list --strategies`` prints all.
"""
