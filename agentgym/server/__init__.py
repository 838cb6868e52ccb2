"""Environments behind WebSocket and HTTP: ``agentgym serve``."""
