"""Environments in which agents write, repair and test programs in a sandbox."""
