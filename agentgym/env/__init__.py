"""The contract of an environment, and the base classes to write one from."""
