"""Environments in which the agent writes, repairs and tests programs, graded in a separate sandbox."""
