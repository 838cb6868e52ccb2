"""vLLM servers: starting them, sampling from them, sending them weights."""
