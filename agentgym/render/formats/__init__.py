"""Tool-call formats: how models write calls as text. One file per format."""
