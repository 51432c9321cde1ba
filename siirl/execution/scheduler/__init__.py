"""Scheduler of graphs on ranks; all but `launch`, `placement` and their helpers is pure."""
