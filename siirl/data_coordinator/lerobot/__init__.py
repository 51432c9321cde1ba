"""Demonstrations in LeRobot's data sets, layouts v2.1 and v3.0: read and written."""
