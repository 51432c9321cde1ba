"""Who runs which graph: enums, TaskScheduler and ProcessGroupManager are pure; `launch` is the edge
to Ray.
"""
