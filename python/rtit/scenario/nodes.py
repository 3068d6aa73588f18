"""A scenario as data: settings, events, and the packets that each event must give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rtit.registers import FULL, Profile
from rtit.unit.arch_state import ArchState
from rtit.unit.parameters.table import Parameters
from rtit.unit.time_model import TimeModel


@dataclass(frozen=True, slots=True)
class Line:
    """A packet, or what stands in its place: `#GP`, `#UD`, `shutdown`.

    `values` in the order of the packet table, but for IP packets the full address alone (nothing if
    it is suppressed), and for MODE.Exec the width of the code, and "IF" if RFLAGS.IF is set.
    """

    name: str
    values: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """What an event must give: `lines`, then anything if `open_end`; or exactly `raw`."""

    lines: tuple[Line, ...] = ()
    open_end: bool = False
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """What happens: `name` with arguments by position and by name. `text` is its line."""

    line: int
    text: str
    name: str
    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    expected: Expected = Expected()


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table of the chapter ("33-55", "4"), or with row "" all of it."""

    table: str
    row: str = ""


@dataclass(slots=True)
class Scenario:
    """A whole file.

    `source` names it; `remark` are the lines of the comment at its top, `section` where the chapter
    has it, `rows` and `examples` what of the chapter it is, `spec` the requirements that it tests.
    `time` None is the clock of the profile; `ctl` are the fields of IA32_RTIT_CTL that `enable`
    writes, `fabric` says that the bytes go to the transport, `code` are bytes of the program behind
    it, by address.
    """

    source: str
    remark: str = ""
    section: str = ""
    rows: tuple[Row, ...] = ()
    examples: tuple[str, ...] = ()
    spec: tuple[str, ...] = ()
    profile: Profile = FULL
    parameters: Parameters = field(default_factory=Parameters)
    time: TimeModel | None = None
    arch: ArchState = field(default_factory=ArchState)
    ctl: Mapping[str, int] = field(default_factory=dict)
    fabric: bool = False
    code: Mapping[int, bytes] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
