"""The types of the linter: a rule, a finding, and the two kinds of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rtit.linter.stream_state import CONTEXT_FREE, StreamState
from rtit.packets import Packet


@dataclass(frozen=True, slots=True)
class Rule:
    """A sentence of the chapter that a stream can break.

    name: one word, for filters. section: of the chapter, or its table. says: what must be. errata:
    processors with one of these (`rtit.registers.errata`) break it.
    """

    name: str
    section: str
    says: str
    errata: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that is broken at a byte of a stream.

    offset: in bytes, of the packet that shows it. packet: its name, "" where there is none.
    detail: what is there, with the bad value; may be "".
    """

    offset: int
    rule: Rule
    packet: str
    detail: str

    def __str__(self) -> str:
        place = f"{self.offset:08x}  {self.packet}: " if self.packet else f"{self.offset:08x}  "
        detail = f" ({self.detail})" if self.detail else ""
        return f"{place}{self.rule.says}{detail} [{self.rule.name}, {self.rule.section}]"


@dataclass(frozen=True, slots=True)
class PacketRule:
    """A rule that a packet breaks by itself, or by where it stands.

    names: the packets it is about. broken: given the packet and the state before it
    tells what is wrong: False or "" nothing, True that the rule is broken, a text the detail.
    """

    rule: Rule
    names: frozenset[str]
    broken: Callable[[Packet, StreamState], bool | str]


@dataclass(frozen=True, slots=True)
class SequenceRule:
    """A rule about what comes after a packet.

    after: the packet that makes it hold, where `when` is true. until: one of these must come;
    between: these may come first. binds: a FUP that comes is the packet's own, not the beginning
    of a compound event. then: what must follow that in turn.
    """

    rule: Rule
    after: str
    when: Callable[[Packet, StreamState], bool]
    until: frozenset[str]
    between: frozenset[str] = CONTEXT_FREE
    binds: bool = True
    then: SequenceRule | None = None

    def chain(self) -> Iterator[SequenceRule]:
        """This one, and those that it leads to."""
        yield self
        if self.then is not None:
            yield from self.then.chain()
