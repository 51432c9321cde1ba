"""Checks and estimates of a run before it starts: refuses invalid jobs, and makes the plan."""
