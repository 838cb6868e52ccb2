"""Adapters to TRL: our credit inside its GRPO trainer, and our environments as its ``environment_factory``.

The package's name never stands in the way of TRL's: inside it, ``trl`` is the library and everything of ours is
imported by its full path.
"""
