"""Retrieval: corpora, their indexes, and retrievers that rank and open documents for an agent."""
