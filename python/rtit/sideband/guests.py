"""Who ran in virtual machines, from the records that `perf inject --guest-data` brought in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from rtit.image import Images, Problem, guest_path, process_in_guest
from rtit.perfdata import PerfData
from rtit.perfdata import records as perf
from rtit.sideband import mapping_records
from rtit.sideband.scheduling import NOBODY, InGuest, TurnList, Turns

_FEW = 1 << 16
"""So often turns may be cut, however few guests had."""
TOO_MANY_CUTS = Problem(
    "unreadable", "turns of guests", "more of them share CPUs than ran: whose code ran is not known"
)
_UNKNOWN = InGuest(NOBODY, NOBODY)


class Guests:
    """The records of virtual machines: what is mapped in their processes goes to `images`, who had
    their CPUs when is told by `within`. `names` has the last name of each of their threads, by the
    process that the machine is and the tid in it. `take` says whether so many bytes more may be
    kept.
    """

    def __init__(self, data: PerfData, take: Callable[[int], bool] = lambda _: True) -> None:
        self.names: dict[tuple[int, int], str] = {}
        self._ids = data.guest_ids
        self._cpus = data.guest_cpus
        self._take = take
        self._turns: dict[int, Turns] = {}
        self._cuts = 0

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
        mapping_records.apply(
            images, time, self._seen_from_outside(machine, record), machine=machine
        )
        # where the host ran it is no matter here
        inside = replace(record, sample_id=replace(who, cpu=vcpu))
        if machine not in self._turns:
            self._turns[machine] = Turns(take=self._take)
        self._turns[machine].apply(time, inside)

    @property
    def turns(self) -> Iterable[Turns]:
        """Those of each machine."""
        return self._turns.values()

    @property
    def most_cuts(self) -> int:
        """So often turns of the host are cut, on all CPUs. A turn of a guest is in one or two of
        them; a file may say that all CPUs ran the same one.
        """
        return _FEW + 2 * sum(map(len, self.turns))

    @property
    def beyond(self) -> bool:
        """Whether there was more to cut: what ran there in guests is not known."""
        return self._cuts > self.most_cuts

    def within(self, turns: TurnList) -> TurnList:
        """The turns of a CPU of the host, those of CPUs of machines cut where other threads got
        them in there.
        """
        found = TurnList()
        on: dict[tuple[int, int], TurnList] = {}
        most = self.most_cuts
        for number, (pid, tid, _) in enumerate(turns.who()):
            since = turns.since[number]
            vcpu = self._cpus.get((pid, tid))
            if vcpu is None or pid not in self._turns:
                found.put(since, pid, tid)
                continue
            if (pid, tid) not in on:
                on[pid, tid] = self._turns[pid].on(vcpu)
            inside = on[pid, tid]
            if not inside:
                found.put(since, pid, tid)
                continue
            until = turns.since[number + 1] if number + 1 < len(turns) else None
            for begin, guest in _parts(inside, since, until):
                self._cuts += begin > since
                if self._cuts > most:
                    found.put(begin, pid, tid, _UNKNOWN)
                    break
                found.put(begin, pid, tid, guest)
        return found

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


def _parts(inside: TurnList, since: int, until: int | None) -> Iterator[tuple[int, InGuest]]:
    """Which thread of a guest had its CPU when, from `since` to `until`."""
    first = bisect_right(inside.since, since)
    yield since, _guest(inside, first - 1) if first else _UNKNOWN
    for number in range(first, len(inside)):
        if until is not None and inside.since[number] >= until:
            break
        yield inside.since[number], _guest(inside, number)


def _guest(inside: TurnList, number: int) -> InGuest:
    return InGuest(inside.pid[number], inside.tid[number])
