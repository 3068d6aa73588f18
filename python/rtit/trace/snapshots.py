"""Snapshots of a buffer: each has its last bytes, and two of them may share some, or miss some."""

from __future__ import annotations

from rtit.perfdata import Piece


def connected(pieces: list[Piece]) -> list[list[Piece]]:
    """Snapshots of one buffer in groups between which bytes are missing."""
    groups: list[list[Piece]] = []
    end = 0
    for piece in pieces:
        if not groups or piece.aux_offset > end:
            groups.append([])
            end = 0
        groups[-1].append(piece)
        end = max(end, piece.aux_offset + piece.size)
    return groups
