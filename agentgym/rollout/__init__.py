"""Rollouts: token sessions, the episode loop, groups, their plan and their record."""
