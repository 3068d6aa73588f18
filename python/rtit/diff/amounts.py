"""How much of a difference is shown, if nobody says."""

from __future__ import annotations

STEPS = 8
"""Instructions on each side of the place where paths part."""
TOP = 10
"""Functions and calls whose counts differ."""
