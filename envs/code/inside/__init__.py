"""What runs inside a grading sandbox: sent as text, so it needs Python 3.9 and its standard library alone."""
