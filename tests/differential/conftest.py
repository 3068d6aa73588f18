"""Recordings that the tests of this folder share."""

from __future__ import annotations

from differential.modes import recording_of_mode

__all__ = ["recording_of_mode"]
