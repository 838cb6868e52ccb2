"""Code that runs within a vLLM server, in a separate folder so that the server can import nothing else of agentgym."""
