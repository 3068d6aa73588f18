"""Whose turn it was on each CPU, from switches (SWITCH, SWITCH_CPU_WIDE, samples of sched_switch),
ITRACE_START and EXIT.

A trace unit that is turned off and on at a switch is on again before the record of the switch in
is written; what counts is when the thread before it went out.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rtit.perfdata import PerfData
from rtit.perfdata import records as perf
from rtit.perfdata.sample_body import raw_data
from rtit.values import dataclass, field

_SCHED_SWITCH = "sched:sched_switch"
# Of the tracepoint: eight common bytes, comm (16), pid, priority and state (8) of the one before,
# comm and pid of the next.
_NEXT = struct.Struct("<i")
_NEXT_AT = 56
NOBODY = -1
"""Of a thread or process that is not known."""


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


@dataclass(slots=True)
class _Cpu:
    turns: list[Turn] = field(default_factory=list)
    out: int | None = None
    """When the last thread went out, if nobody is known to have come in."""

    def take(self, since: int, pid: int, tid: int) -> None:
        last = self.turns[-1] if self.turns else None
        if last is not None:
            if (last.pid, last.tid) == (pid, tid):
                return
            since = max(since, last.since)
        self.turns.append(Turn(since, pid, tid))

    def first(self, pid: int, tid: int) -> None:
        """Before anything else is known of the CPU: this thread had it."""
        if not self.turns:
            self.take(0, pid, tid)


class Turns:
    """Whose turn it was on each CPU of a recording."""

    def __init__(self, data: PerfData | None = None) -> None:
        self._cpus: dict[int, _Cpu] = {}
        events = data.events if data is not None else []
        self._switches = {
            number: event.attr
            for number, event in enumerate(events)
            if event.name.startswith(_SCHED_SWITCH)
        }
        self._pids: dict[int, int] = {}

    @property
    def cpus(self) -> list[int]:
        """Of which something is known."""
        return sorted(self._cpus)

    def on(self, cpu: int) -> list[Turn]:
        """In order of time; two that follow each other are of different threads."""
        known = self._cpus.get(cpu)
        if known is None:
            return []
        pids = self._pids
        return [
            Turn(turn.since, pids.get(turn.tid, NOBODY), turn.tid) if turn.pid < 0 else turn
            for turn in known.turns
        ]

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
        return self._cpus.setdefault(number, _Cpu())
