"""Algorithms, one file each, in the order in which their nodes run."""
