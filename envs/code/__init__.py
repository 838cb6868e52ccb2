"""Worlds where the agent writes programs, graded out of its reach."""
