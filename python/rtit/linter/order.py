"""Holds the rules about what comes after a packet against a stream."""

from __future__ import annotations

from collections.abc import Generator

from rtit.linter.follows import ALONE, COMPOUND, FOLLOWS
from rtit.linter.rules import Finding, Follow
from rtit.linter.state import NEUTRAL, PSB_PLUS, State, number
from rtit.packets import CFE_TYPES, Packet
from rtit.packets.table import DECLARATIONS

_FOLLOWS: dict[str, tuple[Follow, ...]] = {
    row.name: tuple(follow for follow in FOLLOWS if follow.after == row.name)
    for row in DECLARATIONS
}


class Order:
    """What must still come.

    due: the rules that wait, each with the packet that asks. parked: a FUP whose event had not
    ended when a PSB came. That is right if the processor waits for a SIPI, and its PSB+ has no
    IP then.
    """

    def __init__(self) -> None:
        self.due: list[tuple[Follow, Packet]] = []
        self.parked: Packet | None = None

    def see(self, packet: Packet, state: State) -> Generator[Finding, None, bool]:
        """Take note of a packet, given the state before it. True if it is a FUP that begins an
        event.
        """
        name = packet.name
        if name == "OVF":
            self.__init__()  # type: ignore[misc]  # all of it anew
            return False
        if state.psb_plus is not None:
            if name in PSB_PLUS | NEUTRAL:
                return False
            if self.parked is not None and "FUP" in state.psb_plus:
                yield _missing(COMPOUND, self.parked, packet)
            self.parked = None
        if name == "PSB":
            yield from self._boundary(packet)
            return False
        bound = yield from self._hold(packet)
        begins = name == "FUP" and not bound and not state.overflowed
        if begins and state.tracing is False:
            yield Finding(packet.offset, ALONE, name, "")
        elif begins:
            self.due.append((COMPOUND, packet))
        for follow in _FOLLOWS[name]:
            # One that waits already waits for the same: a flood of packets makes no list of them.
            if follow.when(packet, state) and all(each is not follow for each, _ in self.due):
                self.due.append((follow, packet))
        return begins

    def _hold(self, packet: Packet) -> Generator[Finding, None, bool]:
        """What waits for a packet, and what it is not let pass by. True if that binds a FUP."""
        bound = False
        waits = self.due
        self.due = []
        for follow, origin in waits:
            if packet.name in follow.until:
                bound |= follow.binds
                if follow.then is not None:
                    self.due.append((follow.then, origin))
            elif packet.name in follow.between:
                self.due.append((follow, origin))
            elif not (follow is COMPOUND and _is_sipi(packet)):
                yield _missing(follow, origin, packet)
        return bound

    def _boundary(self, packet: Packet) -> Generator[Finding]:
        """A PSB: all events are complete (section 33.3.7)."""
        for follow, origin in self.due:
            if follow is COMPOUND:
                self.parked = origin
            else:
                yield _missing(follow, origin, packet)
        self.due = []


def _is_sipi(packet: Packet) -> bool:
    return packet.name == "CFE" and CFE_TYPES.get(number(packet, "type")) == "SIPI"


def _missing(follow: Follow, origin: Packet, packet: Packet) -> Finding:
    detail = f"{packet.name} comes; asked for by {origin.name} at {origin.offset:#x}"
    return Finding(packet.offset, follow.rule, packet.name, detail)
