"""tau2-bench's telecom domain: the agent works on a database, the user on a phone."""
