"""What the plugin says besides capture events."""

from __future__ import annotations

from enum import IntEnum

LEAVES = 2
"""Of a warning: process `ip` is about to run a program without a recorder."""
STAYS = 4
"""Of a warning: process `ip` does not leave after all."""
UNCOUNTED = 8
"""Of a warning: what a program executes is not counted."""


class Message(IntEnum):
    """Kinds of messages that are no capture events."""

    HELLO = 40
    PACKETS = 41
    TRUTH = 42
    TRACED = 43
    """target, extra: of what the thread executed so far, traced instructions and branches."""
    COUNTS = 44
    """With a file: the counts of process `ip`. Without: the thread, which goes on in another
    program, has executed `target` instructions in this one."""
