"""Turns of a CPU, as columns: there are millions of them.

Whose turn it was on each CPU, from switches (SWITCH, SWITCH_CPU_WIDE, samples of sched_switch),
ITRACE_START and EXIT.

A trace unit that is turned off and on at a switch is on again before the record of the switch in
is written; what counts is when the thread before it went out.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple, overload

from rtit.perfdata import PerfData
from rtit.perfdata import records as perf
from rtit.perfdata.samples import raw_data

NOBODY = -1
"""Of a thread or process that is not known."""
_NONE = -2
"""In the columns of guests: there is none."""


class InGuest(NamedTuple):
    """Thread `tid` of process `pid` in a virtual machine."""

    pid: int
    tid: int


@dataclass(frozen=True, slots=True)
class Turn:
    """From `since` (TSC ticks) on thread `tid` of process `pid` has the CPU: 0 nobody (idle), -1
    not known. If it is a CPU of a virtual machine, and the file says so, `guest` has that one.
    """

    since: int
    pid: int
    tid: int
    guest: InGuest | None = None


class TurnList(Sequence[Turn]):
    """Turns in order of time. `since` (64 bits), `pid` and `tid` (32) have one number of each;
    `guest_pid` and `guest_tid` are empty if none has a guest.
    """

    __slots__ = ("guest_pid", "guest_tid", "pid", "since", "tid")

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self.since = array("Q")
        self.pid, self.tid = array("i"), array("i")
        self.guest_pid, self.guest_tid = array("i"), array("i")
        for turn in turns:
            self.put(turn.since, turn.pid, turn.tid, turn.guest)

    @property
    def has_guests(self) -> bool:
        """Whether one has a guest."""
        return bool(self.guest_pid)

    def put(self, since: int, pid: int, tid: int, guest: InGuest | None = None) -> None:
        """One more, not before the last."""
        if guest is not None and not self.has_guests:
            self.guest_pid = array("i", [_NONE]) * len(self)
            self.guest_tid = array("i", self.guest_pid)
        self.since.append(since)
        self.pid.append(pid)
        self.tid.append(tid)
        if self.has_guests or guest is not None:
            in_guest = guest or (_NONE, _NONE)
            self.guest_pid.append(in_guest[0])
            self.guest_tid.append(in_guest[1])

    def guest(self, number: int) -> InGuest | None:
        """The guest of turn `number`, if it has one."""
        if not self.has_guests or self.guest_pid[number] == _NONE:
            return None
        return InGuest(self.guest_pid[number], self.guest_tid[number])

    def who(self) -> Iterator[tuple[int, int, InGuest | None]]:
        """Of each turn the process, the thread, the guest."""
        guests = map(self.guest, range(len(self))) if self.has_guests else repeat(None)
        return zip(self.pid, self.tid, guests, strict=False)

    def __len__(self) -> int:
        return len(self.since)

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> list[Turn]: ...
    def __getitem__(self, index: int | slice) -> Turn | list[Turn]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return Turn(self.since[index], self.pid[index], self.tid[index], self.guest(index))

    def __eq__(self, other: object) -> bool:
        return list(self) == other if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


_SCHED_SWITCH = "sched:sched_switch"
# Of the tracepoint: eight common bytes, comm (16), pid, priority and state (8) of the one before,
# comm and pid of the next.
_NEXT = struct.Struct("<i")
_NEXT_AT = 56
_OF_CPU = 1024
_OF_TURN = 24
_AT_ONCE = 64
"""Bytes that they take, about; turns are reckoned so many at once."""


@dataclass(slots=True)
class _Cpu:
    take_room: Callable[[int], bool]
    turns: TurnList = field(default_factory=TurnList)
    out: int | None = None
    """When the last thread went out, if nobody is known to have come in."""
    started: tuple[int, int] | None = None
    """The process and thread that was the first to be traced."""
    full: bool = False
    """There was no room: nothing is known of what came then."""

    def take(self, since: int, pid: int, tid: int) -> None:
        turns = self.turns
        if turns:
            if self.full or (turns.pid[-1], turns.tid[-1]) == (pid, tid):
                return
            since = max(since, turns.since[-1])
        if not len(turns) % _AT_ONCE and not self.take_room(_AT_ONCE * _OF_TURN):
            self.full = True
            pid = tid = NOBODY
        turns.put(since, pid, tid)

    def first(self, pid: int, tid: int) -> None:
        """Before anything else is known of the CPU: this thread had it."""
        if not self.turns:
            self.take(0, pid, tid)


class Turns:
    """Whose turn it was on each CPU of a recording; `take` says whether so many bytes more may be
    kept. Where they may not, it is not known who came then, and `beyond` is true.
    """

    def __init__(
        self, data: PerfData | None = None, take: Callable[[int], bool] = lambda _: True
    ) -> None:
        self._cpus: dict[int, _Cpu] = {}
        self._take = take
        self._without_room = False
        events = data.events if data is not None else []
        self._switches = {
            number: event.attr
            for number, event in enumerate(events)
            if event.name.startswith(_SCHED_SWITCH)
        }
        self._pids: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(len(cpu.turns) for cpu in self._cpus.values())

    @property
    def cpus(self) -> list[int]:
        """Of which something is known."""
        return sorted(self._cpus)

    @property
    def beyond(self) -> bool:
        """Whether there were more than could be kept."""
        return self._without_room or any(cpu.full for cpu in self._cpus.values())

    def on(self, cpu: int) -> TurnList:
        """Two that read_sideband each other are of different threads."""
        known = self._cpus.get(cpu)
        if known is None:
            return TurnList()
        turns = known.turns
        if turns and min(turns.pid) < 0:
            for number, pid in enumerate(turns.pid):
                if pid < 0:
                    turns.pid[number] = self._pids.get(turns.tid[number], NOBODY)
        return turns

    def first_on(self, cpu: int) -> tuple[int, int]:
        """(pid, tid) of the first thread that was traced on a CPU; -1 where the file does not
        say.
        """
        known = self._cpus.get(cpu)
        return (known.started if known is not None else None) or (NOBODY, NOBODY)

    def apply(self, time: int, record: perf.Record) -> None:
        """Take the next record, in order of time (TSC ticks)."""
        if isinstance(record, perf.Fork | perf.Comm):
            self._pids[record.tid] = record.pid
        who = record.sample_id
        if who is None or who.cpu is None:
            return
        if isinstance(record, perf.SwitchCpuWide | perf.Switch):
            if who.tid is not None and who.pid is not None:
                self._switch(time, record, who.cpu, who.pid, who.tid)
        elif isinstance(record, perf.ItraceStart):
            self._pids[record.tid] = record.pid
            cpu = self._cpu(who.cpu)
            cpu.started = cpu.started or (record.pid, record.tid)
            cpu.first(record.pid, record.tid)
            cpu.take(time if cpu.out is None else cpu.out, record.pid, record.tid)
            cpu.out = None
        elif isinstance(record, perf.Exit):
            cpu = self._cpu(who.cpu)
            if cpu.turns and cpu.turns[-1].tid == record.tid:
                cpu.out = time
        elif isinstance(record, perf.Sample) and record.event in self._switches:
            self._sample(time, record, self._cpu(who.cpu))

    def _switch(
        self, time: int, record: perf.SwitchCpuWide | perf.Switch, number: int, pid: int, tid: int
    ) -> None:
        cpu = self._cpu(number)
        if record.is_out:
            cpu.first(pid, tid)
            cpu.out = time
            if isinstance(record, perf.SwitchCpuWide):
                cpu.take(time, record.other_pid, record.other_tid)
        else:
            if isinstance(record, perf.SwitchCpuWide):
                cpu.first(record.other_pid, record.other_tid)
            cpu.take(time if cpu.out is None else cpu.out, pid, tid)
            cpu.out = None

    def _sample(self, time: int, record: perf.Sample, cpu: _Cpu) -> None:
        who, raw = record.sample_id, raw_data(self._switches[record.event], memoryview(record.body))
        if who is None or raw is None or len(raw) < _NEXT_AT + _NEXT.size:
            return
        if who.tid is not None:
            cpu.first(NOBODY if who.pid is None else who.pid, who.tid)
        (tid,) = _NEXT.unpack_from(raw, _NEXT_AT)
        cpu.take(time, 0 if tid == 0 else NOBODY, tid)

    def _cpu(self, number: int) -> _Cpu:
        if number in self._cpus:
            return self._cpus[number]
        cpu = _Cpu(self._take)
        if self._take(_OF_CPU):
            self._cpus[number] = cpu
        else:
            self._without_room = True
        return cpu
