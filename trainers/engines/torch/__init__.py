"""The embedded engine, in torch."""
