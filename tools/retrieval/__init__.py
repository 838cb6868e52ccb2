"""Retrieval: a corpus, its index, and what is ranked and opened for an agent."""
