"""Environments of other projects, run by their original engines."""
