"""Selections after the rollout: which trajectories, turns and tokens train, and over whom statistics are taken."""
