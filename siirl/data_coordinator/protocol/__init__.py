"""What a batch is: `columns` (which columns there are, and along which axis each is ragged) and `batch` (operations on rows)."""
