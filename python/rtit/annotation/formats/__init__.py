"""Annotated functions as text, HTML and JSON."""
