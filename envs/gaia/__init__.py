"""GAIA: questions for assistants that search, read and calculate."""
