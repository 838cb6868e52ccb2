"""Environments on a server, used like local ones: ``make(id, url="ws://...")``."""
