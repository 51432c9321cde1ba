"""Batch protocol: `batch_columns` (the columns and their ragged axes), `batch` (row operations)."""
