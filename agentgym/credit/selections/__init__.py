"""Selections choose, after the rollout, the trajectories, turns and tokens that train.

Each also says which members of a group the group's statistics are taken over (composition rule 9).
"""
