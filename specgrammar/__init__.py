"""Grammar-constrained speculative decoding for any LLM engine."""
