"""The environment contract and the base classes for environments."""
