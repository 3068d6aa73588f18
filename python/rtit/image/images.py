"""The code of all processes over time, built from sideband events.

`rtit.sideband` calls `Images` for each event (mmap, exec, fork, written code), in order of time.
Times are TSC values, addresses and sizes are in bytes. Mapped files are read when they are mapped;
a file that is missing or changed leaves a gap and a `Problem`. Every event reserves memory in a
`MemoryBudget`. If that fails, nothing is known of the code of the event's process from then on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from collections.abc import Mapping as Table
from dataclasses import replace
from sys import getsizeof
from typing import TYPE_CHECKING

from rtit.image.file_symbols import FileSymbols
from rtit.image.image import Image
from rtit.image.kernel import KERNEL_PID, KernelFiles, guest_kernel_pid
from rtit.image.mapped_files import VDSO, Files, PackedFiles, UnusableFile
from rtit.image.mappings import FOREVER, KERNEL_START, Mapping, Mappings, has_file
from rtit.image.memory_budget import MemoryBudget
from rtit.image.problems import Problem

if TYPE_CHECKING:
    from rtit.image.debuginfod import Debuginfod
    from rtit.image.kernel.kernel import Kernel

_MAX_GAP_FILLING = 64
"""A mapping over more mappings than this replaces them, even those that show the same bytes."""


class Images:
    """The images of all processes of a recording.

    Most options are those of `Files`. `kernel` are the kernel's files if kernel code was
    traced, else None: records about kernel code are then ignored. `guests` are those of virtual
    machines by the pid of their process; 0: of all other machines. `size` is that of the recording
    in bytes, `reserved` the memory that its AUX index uses. `has_all_code`: the recording has all
    code of processes, and files have only its names.

    Call `mmap`, `exec`, `fork` and `text_poke` in order of time, then `finish`, then `image(tid)`.
    After `finish`, the kernel's image is that of process `KERNEL_PID`, a guest kernel's that of
    `guest_kernel_pid(machine)`. `problems` lists every file that could not be used, once, and what
    else is unknown.
    """

    def __init__(
        self,
        *,
        symfs: str | os.PathLike[str] | None = None,
        path_map: Table[str, str] | None = None,
        build_ids: Table[str, bytes] | None = None,
        build_id_cache: str | os.PathLike[str] | None = None,
        recorded: float | None = None,
        packed: PackedFiles | None = None,
        debuginfod: Debuginfod | None = None,
        kernel: KernelFiles | None = None,
        guests: Table[int, KernelFiles] | None = None,
        has_all_code: bool = False,
        size: int = 0,
        reserved: int = 0,
    ) -> None:
        self.files = Files(
            symfs=symfs,
            path_map=path_map,
            build_ids=build_ids,
            build_id_cache=build_id_cache,
            recorded=recorded,
            packed=packed,
            debuginfod=debuginfod,
        )
        self._processes: dict[int, Image] = {}
        self._pids: dict[int, int] = {}
        self._problems: dict[Problem, None] = {}
        self._unknown_bytes: dict[Problem, int] = {}
        """Bytes of mappings that the problem leaves unknown."""
        self._unknown_since: dict[tuple[int, int], int] = {}
        """(id of the image, start of such a mapping) -> time of the mapping."""
        self.budget = MemoryBudget(size, reserved)
        self._has_all_code = has_all_code
        self._dropped: set[int] = set()
        """Processes without known code, because the budget was used up."""
        self.kernel: Kernel | None = None
        """Takes records about kernel code."""
        self.guests: dict[int, Kernel] = {}
        """The same for the kernels of virtual machines, by pid; 0: all other machines."""
        if kernel is not None or guests:
            from rtit.image.kernel.kernel import Kernel

            self.kernel = None if kernel is None else Kernel(kernel, self.files, self.budget)
            self.guests = {
                machine: Kernel(files, self.files, self.budget, machine=machine)
                for machine, files in (guests or {}).items()
            }
        self.jit_files: dict[str, str] = {}
        """Paths of jitdump files and perf maps -> names for messages."""
        self.jit_problems: list[Problem] = []
        """Problems of these files."""

    def finish(self) -> None:
        """Build the kernels' images, after the last event."""
        if self.kernel is not None:
            self.set_image(KERNEL_PID, self.kernel.build_image())
            self._problems.update(dict.fromkeys(self.kernel.problems))
        for machine, guest in self.guests.items():
            self.set_image(guest_kernel_pid(machine), guest.build_image())
            self._problems.update(dict.fromkeys(guest.problems))

    def kernel_address(self, name: str) -> int | None:
        """Return the address of a kernel function; None if it is unknown."""
        return self.kernel.addresses.get(name) if self.kernel is not None else None

    def guest_on_cpu(self, pids: Iterable[int]) -> int | None:
        """Return the machine whose kernel runs on a CPU that these processes share; None if
        unknown.

        If several of the machines have files, the result is None and a problem is added.
        """
        machines = sorted({pid for pid in pids if pid > 0 and pid in self.guests})
        if len(machines) > 1:
            numbers = ", ".join(map(str, machines))
            message = f"{numbers} share a CPU: the code of guests there is unknown"
            self.add_problem(Problem("missing", "virtual machines", message))
            return None
        return machines[0] if machines else 0 if 0 in self.guests else None

    @property
    def kernel_image(self) -> Image | None:
        """The code of the kernel if it was traced, after `finish`."""
        return self._processes.get(KERNEL_PID) if self.kernel is not None else None

    @property
    def problems(self) -> list[Problem]:
        """All problems, in order of their first event."""
        return list(self._problems)

    def add_problem(self, problem: Problem) -> None:
        """Add a problem, once."""
        self._problems.setdefault(problem)

    @property
    def pids(self) -> list[int]:
        """The processes, in order of their first event."""
        return list(self._processes)

    def pid(self, tid: int) -> int:
        """Return the process of a thread; an unknown thread is its own process."""
        return self._pids.get(tid, tid)

    def image(self, tid: int) -> Image:
        """Return the code of the thread's process; empty if the process is unknown."""
        return self._image_of_process(self.pid(tid))

    def find_image(self, pid: int) -> Image | None:
        """Return the code of process `pid`; None if it had no event."""
        return self._processes.get(pid)

    def set_image(self, pid: int, image: Image) -> None:
        """Set the code of process `pid`."""
        self._processes[pid] = image

    def mappings(self, tid: int) -> Mappings:
        """Return the mappings of the thread's process."""
        return self._image_of_process(self.pid(tid)).mappings

    def set_thread(self, pid: int, tid: int) -> None:
        """Note that `tid` is a thread of `pid`. Events with both ids do so themselves."""
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

        Ignored: kernel addresses, mappings that are not executable, and mappings of the bytes that
        are there already (a change of protection). Memory without a file has the bytes of
        `text_poke` and none of a file mapped there before.
        """
        end = address + size
        if not executable or size <= 0 or pgoff < 0 or not 0 <= address < end <= KERNEL_START:
            return
        self.set_thread(pid, tid)
        process = self._image_of_process(pid)
        if path in ("", "//anon"):
            pgoff = address  # as the kernel has it: code is then shown by its address
        new = Mapping(address, end, pgoff, path, build_id, time)
        old = process.mappings.mappings_overlapping(address, end)
        parts = _parts_without_equal_mapping(new, old if len(old) <= _MAX_GAP_FILLING else [])
        if not parts:
            return
        limits = self.budget.limits
        memory = limits.mapping * (len(parts) + len(old)) + getsizeof(path)
        if has_file(path) and not self.files.was_requested(path, build_id):
            memory += limits.file + limits.size_of_name(path) - getsizeof(path)
        if not self._reserve_or_drop_code(memory, time, pid):
            return
        if self._has_all_code:
            if has_file(path):
                self.files.request(path, build_id)
            for part in parts:
                process.mappings.add(part)
            return
        if has_file(path):
            for part in parts:
                problem = self._map_file(process, part)
                process.mappings.add(replace(part, problem=problem))
            return
        if path == VDSO and self._map_vdso(process, new):
            return
        for each in old:
            if has_file(each.path):
                start = max(address, each.start)
                process.native.unmap(time, start, min(end, each.end) - start)
        for part in parts:
            process.mappings.add(part)

    def _map_file(self, process: Image, part: Mapping) -> Problem | None:
        size = part.end - part.start
        # Nothing of an older mapping may stay, not even after the end of a shorter file.
        for old in process.mappings.mappings_overlapping(part.start, part.end):
            start = max(part.start, old.start)
            process.native.unmap(part.since, start, min(part.end, old.end) - start)
        try:
            code = self.files.read_code(part.path, part.offset, size, part.build_id)
        except UnusableFile as error:
            process.native.unmap(part.since, part.start, size)
            self._problems.setdefault(error.problem)
            self._unknown_bytes[error.problem] = self._unknown_bytes.get(error.problem, 0) + size
            self._unknown_since[id(process), part.start] = part.since
            return error.problem
        process.native.map(part.since, part.start, code)
        return None

    def _map_vdso(self, process: Image, new: Mapping) -> bool:
        """Map the vDSO; False if no file has it."""
        try:
            code = self.files.read_code(VDSO, new.offset, new.end - new.start, new.build_id)
        except UnusableFile:
            return False
        process.native.map(new.since, new.start, code)
        process.mappings.add(new)
        return True

    def exec(self, time: int, pid: int, tid: int | None = None) -> None:
        """A new program starts in `pid` (COMM by exec): all its mappings end."""
        self.set_thread(pid, pid if tid is None else tid)
        if self._reserve_or_drop_code(self.budget.limits.code_change, time, pid):
            self._remove_all_code(time, pid)

    def fork(self, time: int, pid: int, ppid: int, tid: int, ptid: int | None = None) -> None:
        """A thread of `pid` starts if `pid` is `ppid`, else a process as a copy of `ppid` (FORK).

        If `pid` was used before, its image continues as that of the new process.
        """
        self.set_thread(pid, tid)
        if ptid is not None:
            self._pids.setdefault(ptid, ppid)
        if pid == ppid:
            return
        parent = self._image_of_process(ppid)
        earlier = self._processes.get(pid)
        limits = self.budget.limits
        memory = limits.inherited_mapping * parent.mappings.current_mapping_count
        if self._has_all_code:
            if self._reserve_or_drop_code(limits.image + memory, time, pid):
                child = self._image_of_process(pid)
                child.mappings.replace_by_copy_of(parent.mappings, time)
            return
        if earlier is None:
            memory += limits.image + limits.inherited_code_change * parent.native.changes
        else:
            memory += limits.code_change * parent.native.changes
        if not self._reserve_or_drop_code(memory, time, pid):
            return
        if earlier is None:
            self._processes[pid] = parent.fork(time)
        else:
            earlier.native.adopt(time, parent.native)
            earlier.mappings.replace_by_copy_of(parent.mappings, time)

    def add_jit_problem(self, problem: Problem) -> None:
        """Add a problem of a jitdump file or perf map."""
        self.jit_problems.append(problem)
        self.add_problem(problem)

    def add_jit_function(self, pid: int, address: int, code: bytes, mapping: Mapping) -> None:
        """Add a JIT-compiled function at the time of `mapping`.

        The mapping is that of the file that lists its symbol. It covers the function, and perhaps
        functions next to it.
        """
        time = mapping.since
        if not self._reserve_or_drop_code(self.budget.limits.mapping, time, pid):
            return
        process, end = self._image_of_process(pid), address + len(code)
        process.native.map(time, address, code)
        if not any(
            each.start <= address < each.end and each.has_same_source(mapping)
            for each in process.mappings.mappings_overlapping(address, end)
        ):
            process.mappings.add(mapping)

    def set_symbols_of_anonymous_memory(self, pid: int, rows: list[tuple[int, int, str]]) -> None:
        """Set the symbols (address, size, name) of a process's memory without a file."""
        process = self._processes.get(pid)
        if process is None or not rows:
            return
        path = f"[perf-{pid}.map]"
        process.mappings.name_anonymous_mappings(path)
        start, end = min(row[0] for row in rows), max(row[0] + row[1] for row in rows)
        self.files.set_symbols(path, FileSymbols.from_rows(start, end, rows))

    def text_poke(self, time: int, pid: int, address: int, new: bytes) -> None:
        """Code was written (TEXT_POKE): `new` is at `address` from `time` on.

        Recorders also write the code of a file this way, at the time of its mapping. The problem of
        an unusable file is removed once all its bytes are known.
        """
        if not 0 <= address < KERNEL_START:
            return
        if not self._reserve_or_drop_code(self.budget.limits.code_change + len(new), time, pid):
            return
        process = self._image_of_process(pid)
        process.native.poke(time, address, new)
        if not self._unknown_bytes:
            return
        for each in process.mappings.mappings_overlapping(address, address + len(new)):
            since = self._unknown_since.get((id(process), each.start))
            if each.problem in self._unknown_bytes and since == time:
                size = min(each.end, address + len(new)) - max(each.start, address)
                self._unknown_bytes[each.problem] -= size
                if self._unknown_bytes[each.problem] <= 0:
                    self._unknown_bytes.pop(each.problem)
                    self._problems.pop(each.problem, None)

    def drop_code(self, time: int, pid: int) -> None:
        """Forget the code of a process, from `time` on."""
        if pid not in self._dropped and pid in self._processes:
            self._dropped.add(pid)
            self._remove_all_code(time, pid)

    def _reserve_or_drop_code(self, size: int, time: int, pid: int) -> bool:
        """Reserve memory for an event of a process; if there is none, drop the process's code."""
        if pid not in self._dropped:
            if self.budget.reserve_memory(size):
                return True
            self._problems.setdefault(_TOO_MUCH)
            self.drop_code(time, pid)
        return False

    def _remove_all_code(self, time: int, pid: int) -> None:
        process = self._image_of_process(pid)
        if not self._has_all_code:
            process.native.clear(time)
        process.mappings.clear(time)

    def _image_of_process(self, pid: int) -> Image:
        if pid not in self._processes:
            self._processes[pid] = Image()
        return self._processes[pid]


_TOO_MUCH = Problem(
    "unreadable",
    "mappings",
    "the code of some processes is unknown from some time on: there are more mappings than the "
    "memory limit of a recording of this size allows",
)


def _parts_without_equal_mapping(new: Mapping, old: list[Mapping]) -> list[Mapping]:
    """Return the parts of `new` that `old` does not show already."""
    parts = []
    at = new.start
    for each in [*old, None]:
        if each is not None and not each.has_same_source(new):
            continue
        start, end = (each.start, each.end) if each is not None else (new.end, FOREVER)
        if at < start:
            parts.append(replace(new, start=at, end=start, offset=new.offset + at - new.start))
        at = max(at, end)
    return parts
