"""Shared parts of the tests: small environments, models, servers and data."""

from pathlib import Path

TESTKIT = Path(__file__).parent
"""The folder of this package, for tests that name one of its files on a command line."""
