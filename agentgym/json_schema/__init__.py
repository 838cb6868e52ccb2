"""JSON Schema as tools use it: reading, validation, and random values."""
