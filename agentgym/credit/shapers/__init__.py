"""Shapers: from a table to a table with other rewards, before anything is estimated."""
