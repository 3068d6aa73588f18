"""The types of the linter: a rule, a finding, and the two kinds of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rtit.linter.stream_state import CONTEXT_FREE, StreamState
from rtit.packets import Packet


@dataclass(frozen=True, slots=True)
class Rule:
    """A requirement of the chapter on the packet stream.

    name: one word, for filters. section: section or table of the chapter. says: the requirement.
    errata: processors with one of these (`rtit.registers.errata`) violate it.
    """

    name: str
    section: str
    says: str
    errata: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation of a rule at a packet.

    offset: of the packet, in bytes. packet: its name, "" for bad bytes. detail: the bad value, or
    "".
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
    """A rule on the contents or the position of a packet.

    names: the packets that it concerns. broken: returns, for a packet and the state before it,
    False or "" if the rule holds, else True or the detail of the finding.
    """

    rule: Rule
    names: frozenset[str]
    broken: Callable[[Packet, StreamState], bool | str]


@dataclass(frozen=True, slots=True)
class SequenceRule:
    """A rule on the packets after a packet.

    after: the packet that creates the obligation, if `when` is true. until: one of these must
    follow; between: these may precede it. binds: a FUP belongs to the packet and does not begin a
    compound event. then: the rule for the packets after `until`.
    """

    rule: Rule
    after: str
    when: Callable[[Packet, StreamState], bool]
    until: frozenset[str]
    between: frozenset[str] = CONTEXT_FREE
    binds: bool = True
    then: SequenceRule | None = None

    def chain(self) -> Iterator[SequenceRule]:
        """Yield this rule, and the rules that follow it by `then`."""
        yield self
        if self.then is not None:
            yield from self.then.chain()
