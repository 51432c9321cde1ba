"""Reads and writes demonstrations as LeRobot data sets."""

VERSIONS = ("v2.1", "v3.0")
"""Layouts of a data set."""
