"""tau2-bench's airline domain."""
