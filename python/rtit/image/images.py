"""Sideband in, images out: what code each process had at each time.

Events are plain values in order of time; times are TSC values, addresses and sizes bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from collections.abc import Mapping as Table
from dataclasses import replace
from sys import getsizeof
from typing import TYPE_CHECKING

from rtit.image.file_symbols import FileSymbols
from rtit.image.files import VDSO, Files, KeptFiles, Problem, Unusable
from rtit.image.image import Image
from rtit.image.kernel import KERNEL, KernelFiles, guest_pid
from rtit.image.mappings import FOREVER, UPPER, Mapping, Mappings, has_file

if TYPE_CHECKING:
    from rtit.image.debug_files import Debuginfod
    from rtit.image.kernel import Kernel

_ROOM = 1 << 27
"""Bytes that all that records tell may take, beside the code itself, of a recording that is no
larger: a file can ask for any number.
"""
_LEAST = 8
"""One in so many of these is left, however many AUX data take."""
_OF_IMAGE = 512
_OF_FILE = 768
_OF_MAPPING = 320
_OF_INHERITED = 160
_OF_POKE = 192
_OF_CHANGE = 16
"""What each takes, about; a change is one that a process has from the one that made it."""
_COPIES = 3
"""So often the path of a file is kept: in sentences that name it, too."""
_MANY = 64
"""A mapping over more than these that show the same takes their place, instead of filling gaps."""


class Images:
    """The images of all processes of a recording.

    Options are those of `Files`; `kernel` are the kernel's files if kernel code was traced, None if
    it was not: then what records tell of it is passed over; `guests` those of virtual machines, by
    their processes, 0: of all others; `size` is that of the recording in bytes, `taken` what is
    kept of its AUX data. Feed `mmap`, `exec`, `fork` and `text_poke` in order of time, then ask for
    `image(tid)`; after `finish` the kernel has its image, too, as process `KERNEL`, and those of
    guests as `guest_pid` says.
    `problems` lists every file that could not be used, each once, and what else is not known.
    """

    def __init__(
        self,
        *,
        symfs: str | os.PathLike[str] | None = None,
        path_map: Table[str, str] | None = None,
        build_ids: Table[str, bytes] | None = None,
        build_id_cache: str | os.PathLike[str] | None = None,
        recorded: float | None = None,
        kept: KeptFiles | None = None,
        debuginfod: Debuginfod | None = None,
        kernel: KernelFiles | None = None,
        guests: Table[int, KernelFiles] | None = None,
        size: int = 0,
        taken: int = 0,
    ) -> None:
        self.files = Files(
            symfs=symfs,
            path_map=path_map,
            build_ids=build_ids,
            build_id_cache=build_id_cache,
            recorded=recorded,
            kept=kept,
            debuginfod=debuginfod,
        )
        self._processes: dict[int, Image] = {}
        self._pids: dict[int, int] = {}
        self._problems: dict[Problem, None] = {}
        # Bytes that are not known because of it, and when each such mapping came.
        self._unknown: dict[Problem, int] = {}
        self._came: dict[tuple[int, int], int] = {}
        room = max(_ROOM, size)
        self._room = max(room - taken, room // _LEAST)
        self._without_room: set[int] = set()
        self.kernel: Kernel | None = None
        """Takes what records tell of the kernel."""
        self.guests: dict[int, Kernel] = {}
        """The same of the kernels of virtual machines, by their processes, 0: of all others."""
        if kernel is not None or guests:
            from rtit.image.kernel import Kernel

            self.kernel = None if kernel is None else Kernel(kernel, self.files, self.take)
            self.guests = {
                machine: Kernel(files, self.files, self.take, machine=machine)
                for machine, files in (guests or {}).items()
            }
        self.jit_files: dict[str, str] = {}
        """Files that tell of code that programs made, with what they are to be called."""
        self.jit_problems: list[Problem] = []
        """What is wrong with such files."""

    def finish(self) -> None:
        """Everything has been told."""
        if self.kernel is not None:
            self.put(KERNEL, self.kernel.build())
            self._problems.update(dict.fromkeys(self.kernel.problems))
        for machine, guest in self.guests.items():
            self.put(guest_pid(machine), guest.build())
            self._problems.update(dict.fromkeys(guest.problems))

    def kernel_address(self, name: str) -> int | None:
        """Where a function of the kernel is, if that is known."""
        return self.kernel.addresses.get(name) if self.kernel is not None else None

    def guest_of(self, pids: Iterable[int]) -> int | None:
        """The virtual machine whose kernel runs where these processes take turns; None if none is
        known. Of two nothing tells which it is: it is neither, and a problem.
        """
        own = sorted({pid for pid in pids if pid > 0 and pid in self.guests})
        if len(own) > 1:
            numbers = ", ".join(map(str, own))
            message = f"{numbers} share a CPU: whose code runs in a guest there is not known"
            self.lacks(Problem("missing", "virtual machines", message))
            return None
        return own[0] if own else 0 if 0 in self.guests else None

    @property
    def kernel_image(self) -> Image | None:
        """The code of the kernel, if that was traced; after `finish`."""
        return self._processes.get(KERNEL) if self.kernel is not None else None

    @property
    def problems(self) -> list[Problem]:
        """Files whose bytes are not known, in the order they were met."""
        return list(self._problems)

    def lacks(self, problem: Problem) -> None:
        """Something else than a file is missing."""
        self._problems.setdefault(problem)

    @property
    def pids(self) -> list[int]:
        """The processes seen, in the order they were met."""
        return list(self._processes)

    def pid(self, tid: int) -> int:
        """The process of a thread; a thread never heard of is its own."""
        return self._pids.get(tid, tid)

    def image(self, tid: int) -> Image:
        """The code of the thread's process over time; empty for one never heard of."""
        return self._process(self.pid(tid))

    def known(self, pid: int) -> Image | None:
        """The code of process `pid`, if anything was ever heard of it."""
        return self._processes.get(pid)

    def put(self, pid: int, image: Image) -> None:
        """This is the code of process `pid`."""
        self._processes[pid] = image

    def mappings(self, tid: int) -> Mappings:
        """What was mapped in the thread's process."""
        return self._process(self.pid(tid)).mappings

    def thread(self, pid: int, tid: int) -> None:
        """`tid` belongs to process `pid`; every event that carries both says so by itself."""
        self._pids[tid] = pid

    def mmap(
        self,
        time: int,
        pid: int,
        tid: int,
        address: int,
        size: int,
        pgoff: int,
        path: str,
        *,
        build_id: bytes | None = None,
        executable: bool = True,
    ) -> None:
        """A mapping appeared (MMAP, MMAP2). `pgoff` is the file offset in bytes.

        Ignored: kernel addresses, mappings that are not executable, and mappings of what is there
        already (a change of protection). Memory without a file has the bytes that `text_poke`
        brings, and none of a file mapped there before.
        """
        end = address + size
        if not executable or size <= 0 or pgoff < 0 or not 0 <= address < end <= UPPER:
            return
        self.thread(pid, tid)
        process = self._process(pid)
        new = Mapping(address, end, pgoff, path, build_id, time)
        old = process.mappings.covering(address, end)
        parts = _gaps(new, old if len(old) <= _MANY else [])
        if not parts:
            return
        room = _OF_MAPPING * (len(parts) + len(old)) + getsizeof(path)
        if has_file(path) and not self.files.knows(path, build_id):
            room += _OF_FILE + (_COPIES - 1) * getsizeof(path)
        if not self._has_room(room, time, pid):
            return
        if has_file(path):
            for part in parts:
                problem = self._show(process, part)
                process.mappings.add(replace(part, problem=problem))
            return
        if path == VDSO and self._vdso(process, new):
            return
        for each in old:
            if has_file(each.path):
                start = max(address, each.start)
                process.native.unmap(time, start, min(end, each.end) - start)
        for part in parts:
            process.mappings.add(part)

    def _show(self, process: Image, part: Mapping) -> Problem | None:
        size = part.end - part.start
        # Also behind the end of a file that is cut there, nothing of an older mapping may stay.
        for old in process.mappings.covering(part.start, part.end):
            start = max(part.start, old.start)
            process.native.unmap(part.since, start, min(part.end, old.end) - start)
        try:
            code = self.files.code(part.path, part.offset, size, part.build_id)
        except Unusable as error:
            process.native.unmap(part.since, part.start, size)
            self._problems.setdefault(error.problem)
            self._unknown[error.problem] = self._unknown.get(error.problem, 0) + size
            self._came[id(process), part.start] = part.since
            return error.problem
        process.native.map(part.since, part.start, code)
        return None

    def _vdso(self, process: Image, new: Mapping) -> bool:
        """The kernel's own code in each process; false if no file has it."""
        try:
            code = self.files.code(VDSO, new.offset, new.end - new.start, new.build_id)
        except Unusable:
            return False
        process.native.map(new.since, new.start, code)
        process.mappings.add(new)
        return True

    def exec(self, time: int, pid: int, tid: int | None = None) -> None:
        """A new program starts in `pid` (COMM by exec): all its mappings are gone."""
        self.thread(pid, pid if tid is None else tid)
        if self._has_room(_OF_POKE, time, pid):
            self._forget(time, pid)

    def fork(self, time: int, pid: int, ppid: int, tid: int, ptid: int | None = None) -> None:
        """A process or thread starts (FORK): a thread if `pid` is `ppid`, else a copy of `ppid`.

        A `pid` that was used before goes on as the new process from `time` on.
        """
        self.thread(pid, tid)
        if ptid is not None:
            self._pids.setdefault(ptid, ppid)
        if pid == ppid:
            return
        parent = self._process(ppid)
        known = self._processes.get(pid)
        change = _OF_CHANGE if known is None else _OF_POKE
        inherited = _OF_INHERITED * parent.mappings.count + change * parent.native.changes
        inherited += _OF_IMAGE if known is None else 0
        if not self._has_room(inherited, time, pid):
            return
        if known is None:
            self._processes[pid] = parent.fork(time)
        else:
            known.native.adopt(time, parent.native)
            known.mappings.adopt(parent.mappings, time)

    def lacks_jit(self, problem: Problem) -> None:
        """Code that a program made cannot be read."""
        self.jit_problems.append(problem)
        self.lacks(problem)

    def jit(self, pid: int, address: int, code: bytes, shown: Mapping) -> None:
        """Add a function that a program generated at the time of `shown`, a mapping of the file
        that lists its name. The mapping covers the function, and neighbours where none was made
        before.
        """
        time = shown.since
        if not self._has_room(_OF_MAPPING, time, pid):
            return
        process, end = self._process(pid), address + len(code)
        process.native.map(time, address, code)
        there = process.mappings.covering(address, end)
        if not any(each.start <= address < each.end and each.same_source(shown) for each in there):
            process.mappings.add(shown)

    def named(self, pid: int, rows: list[tuple[int, int, str]]) -> None:
        """Names (address, size, name) for what a process has in memory without a file."""
        process = self._processes.get(pid)
        if process is None or not rows:
            return
        path = f"[perf-{pid}.map]"
        process.mappings.name(path)
        start, end = min(row[0] for row in rows), max(row[0] + row[1] for row in rows)
        self.files.list(path, FileSymbols.listed(start, end, rows))

    def text_poke(self, time: int, pid: int, address: int, new: bytes) -> None:
        """Code was written (TEXT_POKE): `new` is what `address` holds from `time` on.

        If that is when a file was mapped there that could not be used, it is what the file had: its
        problem is none once all its bytes have come so.
        """
        if not 0 <= address < UPPER:
            return
        if not self._has_room(_OF_POKE + len(new), time, pid):
            return
        process = self._process(pid)
        process.native.poke(time, address, new)
        if not self._unknown:
            return
        for each in process.mappings.covering(address, address + len(new)):
            came = self._came.get((id(process), each.start))
            if each.problem in self._unknown and came == time:
                size = min(each.end, address + len(new)) - max(each.start, address)
                self._unknown[each.problem] -= size
                if self._unknown[each.problem] <= 0:
                    self._unknown.pop(each.problem)
                    self._problems.pop(each.problem, None)

    def take(self, size: int) -> bool:
        """Whether so many bytes more may be kept of what records tell. Once they may not, nothing
        more is kept.
        """
        self._room = max(self._room - size, -1)
        return self._room >= 0

    def lose(self, time: int, pid: int) -> None:
        """Nothing is known of the code of a process from `time` on."""
        if pid not in self._without_room and pid in self._processes:
            self._without_room.add(pid)
            self._forget(time, pid)

    def _has_room(self, size: int, time: int, pid: int) -> bool:
        """Whether so many bytes more may be kept, of this process. Where they may not, nothing is
        known of its code any more.
        """
        if pid not in self._without_room:
            if self.take(size):
                return True
            self._problems.setdefault(_TOO_MUCH)
            self.lose(time, pid)
        return False

    def _forget(self, time: int, pid: int) -> None:
        process = self._process(pid)
        process.native.clear(time)
        process.mappings.clear(time)

    def _process(self, pid: int) -> Image:
        if pid not in self._processes:
            self._processes[pid] = Image()
        return self._processes[pid]


_TOO_MUCH = Problem(
    "unreadable",
    "mappings",
    "the code of some processes is not known any more: more is mapped than is kept of a recording "
    "of this size",
)


def _gaps(new: Mapping, old: list[Mapping]) -> list[Mapping]:
    """The parts of `new` that do not show what `old` shows there already."""
    parts = []
    at = new.start
    for each in [*old, None]:
        if each is not None and not each.same_source(new):
            continue
        start, end = (each.start, each.end) if each is not None else (new.end, FOREVER)
        if at < start:
            parts.append(replace(new, start=at, end=start, offset=new.offset + at - new.start))
        at = max(at, end)
    return parts
