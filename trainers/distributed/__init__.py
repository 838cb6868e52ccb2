"""Ranks, sharded models and checkpoints."""
