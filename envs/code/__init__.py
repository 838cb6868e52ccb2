"""Worlds where the agent writes, repairs and tests programs, graded out of its reach."""
