"""The value model: the policy's features with a value head, its scorers for robots and for text,
and its update.
"""
