"""What the modelled processor answers to events that cannot happen, and to those that end it."""

from __future__ import annotations

from rtit.errors import IllegalEvent
from rtit.unit.arch_state import ArchState

__all__ = [
    "IllegalEvent",
    "Shutdown",
    "require",
    "require_addresses",
    "require_bits",
    "require_no_transaction",
]


class Shutdown(Exception):  # noqa: N818 - the architecture's name for it
    """The event put the processor into the shutdown state; `reason` says why in one sentence.

    Packets of the event are in the output; only INIT, NMI or RESET can follow.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def require_bits(what: str, value: int, bits: int) -> None:
    """Raise IllegalEvent unless `value` has at most `bits` bits."""
    if value >> bits:
        raise IllegalEvent(f"{what} has {bits} bits: {value:#x} does not fit")


def require_addresses(*ips: int | None) -> None:
    """Raise IllegalEvent unless each is a number of 64 bits, or None."""
    for ip in ips:
        if ip is not None and ip >> 64:
            raise IllegalEvent(f"an address has 64 bits: {ip:#x} does not fit")


def require(condition: bool, sentence: str) -> None:
    """Raise IllegalEvent with `sentence` unless `condition` holds; before anything changes."""
    if not condition:
        raise IllegalEvent(sentence)


def require_no_transaction(arch: ArchState, what: str) -> None:
    """Raise IllegalEvent if `what` comes inside a transaction (section 33.2.9.2)."""
    require(not arch.in_tx, f"{what} comes in a transaction, which it aborts first")
