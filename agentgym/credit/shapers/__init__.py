"""Shapers change the rewards of a table before the estimator runs."""
