"""The policy update: PPO's epochs and mini-batches over a TrainEngine, and the scorers."""
