"""Graphs (`dag`) and their execution on ranks (`scheduler`). Only `scheduler.launch` and its
helpers use Ray; the rest is pure.
"""
