"""vLLM servers: start them, sample from them, and send them weights."""
