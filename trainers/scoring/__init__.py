"""Columns of the credit table that the model computes, and scoring of given tokens by a model."""
