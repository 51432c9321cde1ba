"""Text generation with transformers, in this process."""
