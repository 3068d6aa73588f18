"""Recordings that the tests of this folder share."""

from __future__ import annotations

from differential.modes import of_mode

__all__ = ["of_mode"]
