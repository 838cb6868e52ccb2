"""Evaluation: policies, statistics, the runner."""
