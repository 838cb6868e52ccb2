"""Estimators compute advantages from a table of rewards. A new estimator is a new file here, which registers it."""
