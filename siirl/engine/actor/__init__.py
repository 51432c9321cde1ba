"""The policy's update: PPO's epochs and mini-batches over a TrainEngine, and the scorer of embodied
policies.
"""
