"""Estimators: from a table of rewards to advantages. Each file registers its own; a new one is a new file here."""
