"""Text engine over HTTP: a separate inference server generates (rollout=server)."""
