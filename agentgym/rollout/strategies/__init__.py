"""Rollout strategies: the tasks of a step, their numbers of episodes, and the length, start, hints and replay of
episodes.

There are six families: task sources, budgets, horizons, branchings, guidance and replays (:mod:`.component`).
``strategy.tasks``, ``strategy.budget``, ``strategy.horizon``, ``strategy.branching``, ``strategy.guidance`` and
``strategy.replay`` of a training configuration each name one. ``agentgym list --strategies`` prints all.
"""
