"""vLLM, used from a program of one's own."""
