"""Adapters to TRL: our credit in its GRPO trainer, and our environments as its ``environment_factory``.

Within this package ``import trl`` is the library; our own modules are imported by their full path.
"""
