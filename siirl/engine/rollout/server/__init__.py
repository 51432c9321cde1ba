"""Text engine over HTTP: an inference server of its own generates (rollout=server)."""
