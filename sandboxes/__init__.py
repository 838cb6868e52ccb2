"""Sandboxes: where an agent's code runs."""
