"""Checks and estimates of a run before it starts: what cannot work is refused here, the plan is
made here.
"""
