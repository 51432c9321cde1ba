"""The value model, its scorers for robots and text, and its update."""
