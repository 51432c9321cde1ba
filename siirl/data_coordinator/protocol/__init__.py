"""What a batch is: `batch_columns` (which columns there are, and along which axis each is ragged)
and `batch` (operations on rows).
"""
