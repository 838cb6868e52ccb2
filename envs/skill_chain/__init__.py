"""Chains of similar tasks: skills that an agent saves in one task are in its library in the next."""
