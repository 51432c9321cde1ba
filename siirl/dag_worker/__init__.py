"""One worker a rank: walks its graph, stage by stage; its components, validation and checkpoints."""
