"""An ALFWorld-like text household, generated from a seed."""
