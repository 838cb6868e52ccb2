"""What runs inside a sandbox: sent there as source text, so the standard library alone, and Python 3.9 will do."""
