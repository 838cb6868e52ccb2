"""Rollout strategies: which tasks a step plays, with how many episodes each, and how long an episode may be.

Three families, one file per strategy: task sources, budgets and horizons (:mod:`.component`). ``strategy.tasks``,
``strategy.budget`` and ``strategy.horizon`` of a training configuration name one each; ``agentgym list --strategies``
prints them all.
"""
