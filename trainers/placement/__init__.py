"""Engines of a run and of saved models: built over a model, filled with weights."""
