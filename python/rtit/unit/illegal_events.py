"""Checks of an event's arguments, and the exceptions for events that cannot happen or that end in
shutdown.

All checks run before the event changes any state.
"""

from __future__ import annotations

from rtit.errors import IllegalEvent
from rtit.unit.arch_state import ArchState


class ShutdownEntered(Exception):  # noqa: N818 - the architecture's name for it
    """The event put the processor into the shutdown state; `reason` is one sentence.

    The packets of the event are in the output. Only INIT, NMI or RESET can follow.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def require_bits(what: str, value: int, bits: int) -> None:
    """Raise IllegalEvent unless `value` has at most `bits` bits."""
    if value >> bits:
        raise IllegalEvent(f"{what} has {bits} bits: {value:#x} does not fit")


def require_addresses(*ips: int | None) -> None:
    """Raise IllegalEvent unless each is None or a number of at most 64 bits."""
    for ip in ips:
        if ip is not None and ip >> 64:
            raise IllegalEvent(f"an address has 64 bits: {ip:#x} does not fit")


def require_legal(condition: bool, sentence: str) -> None:
    """Raise IllegalEvent with `sentence` unless `condition` holds."""
    if not condition:
        raise IllegalEvent(sentence)


def require_no_transaction(arch: ArchState, what: str) -> None:
    """Raise IllegalEvent if `what` occurs inside a transaction (section 33.2.9.2)."""
    require_legal(not arch.in_tx, f"{what} comes in a transaction, which it aborts first")
