"""Text generation with vLLM."""
