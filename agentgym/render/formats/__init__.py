"""Tool-call formats: the syntax in which models write calls as text. One module per group of formats."""
