"""Rewards as nodes: the architecture guide's place for a user's own (section 11.2). Any other
module does as well.
"""
