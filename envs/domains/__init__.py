"""Domains: customer-service tasks with a written policy, tools over a database, and a user; the database's hash is
graded.

The design follows tau2-bench ("τ²-Bench: Evaluating Conversational Agents in a Dual-Control Environment", Barres et
al., 2025), whose file format is supported.
"""
