"""One worker a rank: walks its graph, stage by stage; metrics, videos, validation and checkpoints of a run."""
