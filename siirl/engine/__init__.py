"""Everything that holds a model or a simulator: the actor, the rollout engine, reward managers,
weight sync.
"""
