"""Worker of one rank: graph execution, its components, validation and checkpoints."""
