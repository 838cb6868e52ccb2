"""Ranks of the trainer that Ray places and restarts."""
