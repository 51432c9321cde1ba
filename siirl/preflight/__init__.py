"""Checks and estimates of a run before it starts: refuses jobs that cannot work, and makes the
plan.
"""
