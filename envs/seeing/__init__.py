"""Environments whose observations are pictures that they draw themselves, without a browser."""
