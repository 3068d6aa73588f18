"""A process as it was recorded: what gdb is told when it asks."""

from __future__ import annotations

import os
import signal
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from rtit.errors import RtitError, UnsupportedError, UsageError
from rtit.gdb import qxfer
from rtit.gdb.calls import callers, next_ip
from rtit.gdb.path import Path
from rtit.gdb.program import Program
from rtit.readable import readable
from rtit.views.trace_tail import Crash, find_crashes

if TYPE_CHECKING:
    from rtit.trace import Stream, Trace

_KEPT = 8
"""Paths that are held at once."""
_MOST_CALLERS = 1024
TRAP = 5
_SIGNALS: dict[int, int] = {signal.SIGBUS: 10, signal.SIGSYS: 12}
"""Those that a fault may give and that gdb numbers otherwise than Linux."""


class Target:
    """The threads of one process. `form`: "pt", the packets where they can be given, or "bts", the
    runs of instructions that were decoded from them; `last`: so many instructions of a thread, or
    some more; `tell` is called with a sentence for people.

    `tid` is the thread to look at first; without one it is that which crashed, else the first.
    Raises UsageError if there is no such thread, UnsupportedError for raw PT.
    """

    def __init__(
        self,
        trace: Trace,
        tid: int | None = None,
        *,
        form: str = "pt",
        last: int,
        tell: Callable[[str], None],
    ) -> None:
        streams = [each for each in trace.threads if each.tid > 0]
        if not streams:
            why = f" (incomplete: {trace.incomplete})" if trace.incomplete else ""
            raise UnsupportedError(f"{trace.path}: it is not known which threads were traced{why}")
        found = find_crashes(trace, streams)
        if tid is None:
            tid = found[0].tid if found else streams[0].tid
        own = [each for each in streams if each.tid == tid]
        if not own:
            known = ", ".join(map(str, dict.fromkeys(each.tid for each in streams)))
            raise UsageError(f"there is no thread {tid}; there are {known}")
        self._crashes: dict[int, Crash] = {each.tid: each for each in found}
        self.pid, self.tid = own[-1].pid, tid
        self.threads: dict[int, list[Stream]] = {}
        for each in streams:
            if each.pid == self.pid:
                self.threads.setdefault(each.tid, []).append(each)
        self.trace = trace
        self._form, self._last, self._tell = form, last, tell
        self._paths: OrderedDict[int, Path] = OrderedDict()
        self._next: dict[int, int | None] = {}
        self._told: dict[int, int | None] = {}
        self._left: set[int] = set()
        self._described: set[int] = set()
        self.gaps: set[int] = set()
        """The threads of which something is missing, of those that were decoded."""
        names = {process.pid: process.name for process in trace.processes}
        self.program = Program(trace.images, self.pid, names.get(self.pid, ""))
        self._since = trace.images.mappings(self.pid).life

    def name(self, tid: int) -> str:
        """What the thread was called, "" if nothing is known."""
        return self.threads[tid][-1].name or ""

    def path(self, tid: int) -> Path:
        """The last of what the thread did. Raises what decoding does."""
        if tid in self._paths:
            self._paths.move_to_end(tid)
            return self._paths[tid]
        path = self._paths[tid] = Path(self.threads[tid], self._last, self._since)
        if path.gaps:
            self.gaps.add(tid)
        if len(self._paths) > _KEPT:
            self._paths.popitem(last=False)
        self._told[tid] = path.next
        if path.left:
            self._left.add(tid)
        if path.turned and path.next is None:
            self._next[tid] = path.target()
        else:
            self._next[tid] = (
                next_ip(self.program.image, int(path.last[-1])) if len(path.last) else None
            )
        return path

    def pc(self, tid: int) -> int | None:
        """Where the thread was in the end: at the instruction that a fault stopped, or where the
        packets say that it was, or where its last branch went, or else behind the last that it
        executed, as in a system call; None if that is not known.
        """
        if (crash := self.crash(tid)) is not None:
            return crash.ip
        told = self._told[tid]
        return told if told is not None else self._next[tid]

    def crash(self, tid: int) -> Crash | None:
        """How it ended the process, if its trace goes as far as that."""
        if tid not in self._next:
            self.path(tid)
        found = self._crashes.get(tid)
        return found if found is not None and self._ends_at(tid, found.ip) else None

    def _ends_at(self, tid: int, ip: int) -> bool:
        told = self._told[tid]
        if told is not None:
            return told == ip
        return tid not in self._left and "stopped" not in self.trace.facts

    def signal(self, tid: int) -> int:
        """Why it stopped, as gdb numbers signals."""
        crash = self.crash(tid)
        number = crash.signal[0] if crash is not None else TRAP
        return _SIGNALS.get(number, number)

    def registers(self, tid: int) -> list[str]:
        """As `documents.registers`."""
        return qxfer.registers(self.pc(tid))

    def callers(self, tid: int) -> list[int]:
        """As `calls.callers`."""
        return callers(self.path(tid), self.program.image, _MOST_CALLERS)

    def as_packets(self, tid: int) -> bool:
        """Whether gdb gets the packets of the thread, and no blocks."""
        return self._form == "pt" and self.path(tid).sync is not None

    def configuration(self, tid: int) -> str:
        """How it was recorded."""
        streams = self.threads[tid]
        alone = len(streams) == 1 and streams[0].shares is None
        form = "pt" if self._form == "pt" and alone else "bts"
        return qxfer.configuration(form, sum(each.size for each in streams))

    def branches(self, tid: int) -> str:
        """What the thread did, for gdb to follow. Raises what decoding does."""
        path = self.path(tid)
        self.describe(tid)
        if self.as_packets(tid):
            settings = self.threads[tid][0].settings
            cpu = None if isinstance(settings, RtitError) else settings.cpu
            return qxfer.packets(path.packets(), cpu)
        pc = self.pc(tid)
        goes_on = pc is not None and pc == self._next[tid] and not path.turned
        return qxfer.blocks(path, pc, goes_on=goes_on)

    def document(self, name: str) -> bytes | None:
        """One that is the same for all threads; None if there is none of this name."""
        match name:
            case "features":
                return qxfer.features().encode()
            case "auxv":
                return self.program.auxv()
            case "libraries-svr4":
                return qxfer.libraries(self.program).encode()
            case "exec-file":
                main = self.program.main
                return os.fsencode(main.path) if main is not None else None
            case "threads":
                return qxfer.threads((tid, self.name(tid)) for tid in self.threads).encode()
        return None

    def describe(self, tid: int) -> None:
        """Say how much of it gdb is given, once. Raises what decoding does."""
        if tid in self._described:
            return
        self._described.add(tid)
        path = self.path(tid)
        packets = self.as_packets(tid)
        given, whole = path.given(packets=packets), path.instructions
        much = f"all {whole:,}" if given >= whole else f"the last {given:,} of {whole:,}"
        how = (
            "" if packets or self._form == "bts" else ", as blocks: its packets are not of it alone"
        )
        end, reached = self._crashes.get(tid), self.crash(tid)
        ending = f", to {readable(end.ending)}" if reached is not None and end is not None else ""
        if end is not None and reached is None:
            ending = f"; {readable(end.ending)} came later, and what led there was not traced"
        named = f" ({readable(self.name(tid))})" if self.name(tid) else ""
        self._tell(f"thread {tid}{named}: {much} instructions{ending}{how}")
        if path.gaps:
            places = "1 place" if path.gaps == 1 else f"{path.gaps:,} places"
            self._tell(f"thread {tid}: something is missing in {places}")
