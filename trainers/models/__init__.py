"""Models and tokenizers: loading, building, adapters, quantization, and a trained policy."""
