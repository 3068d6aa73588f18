"""Who ran in virtual machines, from the records that `perf inject --guest-data` brought in."""

from __future__ import annotations

from rtit.image import Images, guest_path, process_in_guest
from rtit.perfdata import PerfData
from rtit.perfdata import records as perf
from rtit.sideband import spaces
from rtit.sideband.turns import NOBODY, InGuest, Turn, Turns
from rtit.values import replace

_MOST_TURNS = 1 << 22
"""Turns of threads of the host, cut where those of guests begin."""


class Guests:
    """The records of virtual machines: what is mapped in their processes goes to `images`, who had
    their CPUs when is told by `within`. `names` has the last name of each of their threads, by the
    process that the machine is and the tid in it.
    """

    def __init__(self, data: PerfData) -> None:
        self.names: dict[tuple[int, int], str] = {}
        self._ids = data.guest_ids
        self._cpus = data.guest_cpus
        self._turns: dict[int, Turns] = {}

    def machine(self, record: perf.Record) -> int:
        """Whose a record is: the process that the machine is; 0: the host's."""
        who = record.sample_id
        return self._ids.get(who.id, (0, 0))[0] if who is not None and who.id is not None else 0

    def apply(self, images: Images, time: int, record: perf.Record) -> None:
        """Take the next record of a machine, in order of time (TSC ticks)."""
        who = record.sample_id
        if who is None or who.id is None:
            return
        machine, vcpu = self._ids[who.id]
        if isinstance(record, perf.Comm):
            self.names[machine, record.tid] = record.comm
        elif isinstance(record, perf.Fork) and (machine, record.ptid) in self.names:
            self.names.setdefault((machine, record.tid), self.names[machine, record.ptid])
        spaces.apply(images, time, self._seen_from_outside(machine, record), machine=machine)
        # where the host ran it is no matter here
        inside = replace(record, sample_id=replace(who, cpu=vcpu))
        self._turns.setdefault(machine, Turns()).apply(time, inside)

    def within(self, turns: list[Turn]) -> list[Turn]:
        """The turns of a CPU of the host, those of CPUs of machines cut where other threads got
        them in there.
        """
        found: list[Turn] = []
        on: dict[tuple[int, int], list[Turn]] = {}
        for number, turn in enumerate(turns):
            who = turn.pid, turn.tid
            if who not in on:
                on[who] = self._inside(*who)
            inside = on[who]
            until = turns[number + 1].since if number + 1 < len(turns) else None
            if not inside or len(found) > _MOST_TURNS:
                found.append(turn)
                continue
            found.extend(_cut(turn, until, inside))
        return found

    def _inside(self, pid: int, tid: int) -> list[Turn]:
        """Who had the CPU that a thread is: nobody if it is none, or without records."""
        vcpu, turns = self._cpus.get((pid, tid)), self._turns.get(pid)
        return turns.on(vcpu) if turns is not None and vcpu is not None else []

    def _seen_from_outside(self, machine: int, record: perf.Record) -> perf.Record:
        """The same with numbers and paths that are no others of the host."""

        def outside(number: int) -> int:
            return process_in_guest(machine, number) if number > 0 else number

        if isinstance(record, perf.Mmap | perf.Mmap2) and not record.path.startswith(("[", "//")):
            path = guest_path(machine, record.path)
            record = replace(record, path=path)
        if isinstance(record, perf.Fork):
            record = replace(record, ppid=outside(record.ppid), ptid=outside(record.ptid))
        if isinstance(record, perf.Comm | perf.Fork | perf.Mmap | perf.Mmap2 | perf.ItraceStart):
            return replace(record, pid=outside(record.pid), tid=outside(record.tid))
        who = record.sample_id
        if isinstance(record, perf.TextPoke) and who is not None and who.pid is not None:
            return replace(record, sample_id=replace(who, pid=outside(who.pid)))
        return record


def _cut(turn: Turn, until: int | None, inside: list[Turn]) -> list[Turn]:
    """A turn from its beginning up to `until` in parts: which thread of the guest has it."""
    from bisect import bisect_right

    first = bisect_right(inside, turn.since, key=lambda each: each.since)
    before = inside[first - 1] if first else Turn(0, NOBODY, NOBODY)
    found = [replace(turn, guest=InGuest(before.pid, before.tid))]
    for each in inside[first:]:
        if until is not None and each.since >= until:
            break
        found.append(replace(turn, since=each.since, guest=InGuest(each.pid, each.tid)))
    return found
