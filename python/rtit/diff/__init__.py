"""Compares two recordings: where the paths of their threads diverge, and which counts differ."""
