"""Algorithms, one plain file each: read the file and you have read the algorithm; change it and you
have changed it.
"""
