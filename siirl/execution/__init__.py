"""The planner: graphs (`dag`) and who runs them (`scheduler`). Everything here is pure data, but
for the Ray edge `scheduler.launch`.
"""
