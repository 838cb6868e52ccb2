"""Environments of other people, run by their own unmodified engines."""
