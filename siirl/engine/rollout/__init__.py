"""Rollouts: engines that batch requests, episodes as coroutines, and the executor of episodes."""
