"""Environments of a server, used like those of this process: ``make(id, url="ws://...")``."""
