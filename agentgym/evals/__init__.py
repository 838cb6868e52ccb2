"""Evaluation: policies, suites, scoring, statistics and the runner."""
