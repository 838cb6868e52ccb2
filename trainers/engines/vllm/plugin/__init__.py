"""Code that is loaded inside a vLLM server: a folder of its own, so that nothing else of ours is importable there."""
