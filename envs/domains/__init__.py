"""Domains: a policy in words, tools over a database, tasks, and a user who talks; graded by the database's hash.

The shape is that of tau2-bench ("τ²-Bench: Evaluating Conversational Agents in a Dual-Control Environment", Barres et
al., 2025), whose file format is read as it is.
"""
