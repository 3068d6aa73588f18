"""Decoded results as tables: batches of columns, selections of rows, counts."""
