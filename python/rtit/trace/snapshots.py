"""Snapshots of a buffer: each has its last bytes, and two of them may share some, or miss some."""

from __future__ import annotations

from dataclasses import replace

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


def placed(pieces: list[Piece]) -> list[Piece]:
    """Pieces of which nothing tells where in the stream of their buffer they lie, in the order in
    which they were taken: with an `aux_offset` that is right within each of the `connected` groups.

    Two overlap as far as they are the same there and a PSB is in it: the TSC behind one is nowhere
    else. What is before the first PSB of a piece cannot be read without the one before it.
    """
    found: list[Piece] = []
    end = 0
    for piece in sorted(pieces, key=lambda each: each.reference):
        if found:
            last = found[-1]
            shared = overlap(last.data, piece.data)
            start = last.aux_offset + last.size - shared if shared else end + 1
            found.append(replace(piece, aux_offset=start))
        else:
            found.append(piece)
        end = max(end, found[-1].aux_offset + piece.size)
    return found


def overlap(before: memoryview, after: memoryview) -> int:
    """How many bytes at the end of `before` are the first ones of `after`: as many as can be, 0 if
    there is no PSB with its TSC in them.
    """
    from rtit.packets import encode

    psb = encode("PSB")
    telling = len(psb) + len(encode("TSC", tsc=0))
    old, new = bytes(before), bytes(after)
    first = new.find(psb)
    at = old.find(psb, max(first, 0))
    while first >= 0 and at >= 0:
        start = at - first
        if at + telling <= len(old) and new.startswith(old[start:]):
            return len(old) - start
        at = old.find(psb, at + 1)
    return 0
