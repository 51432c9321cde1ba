"""Demonstrations in LeRobot's data sets: read and written."""

VERSIONS = ("v2.1", "v3.0")
"""Layouts of a data set."""
