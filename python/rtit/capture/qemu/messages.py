"""Messages of the plugin that are no capture events."""

from __future__ import annotations

from enum import IntEnum


class Message(IntEnum):
    """Kinds of these messages."""

    HELLO = 40
    """A process connects; ip: its pid. The recorder answers with one byte."""
    PACKETS = 41
    """Packets of the thread's trace unit."""
    TRUTH = 42
    """Records of a truth file."""
    TRACED = 43
    """target, extra: traced instructions and branches of the thread so far."""
    COUNTS = 44
    """With a file: the counts of process `ip`. Without: the thread, which goes on in another
    program, has executed `target` instructions in this one."""
