"""Columns of the credit table that the model makes, and how a model scores given tokens."""
