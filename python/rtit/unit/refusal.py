"""What the modelled processor answers to events that cannot happen, and to those that end it."""

from __future__ import annotations

from rtit.errors import IllegalEvent

__all__ = ["IllegalEvent", "Shutdown", "require"]


class Shutdown(Exception):  # noqa: N818 - the architecture's name for it
    """The event put the processor into the shutdown state; `reason` says why in one sentence.

    Packets of the event are in the output; only INIT, NMI or RESET can follow.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def require(condition: bool, sentence: str) -> None:
    """Raise IllegalEvent with `sentence` unless `condition` holds; before anything changes."""
    if not condition:
        raise IllegalEvent(sentence)
