"""The request and response forms of the APIs that the endpoint speaks, one module each."""
