"""Scheduler of graphs on ranks: TaskScheduler and ProcessGroupManager are pure; `launch` uses Ray."""
