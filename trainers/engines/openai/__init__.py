"""Endpoints that speak OpenAI's protocol, for evaluation."""
