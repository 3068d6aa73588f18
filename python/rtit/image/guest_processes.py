"""Processes of virtual machines: their code is in files of the guest, and CR3 says which runs.

Nothing in a recording of the host tells what a guest's process has mapped: /proc/PID/maps of the
guest does, as it was when it was read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rtit.errors import UsageError
from rtit.image.files import Files, Problem, UnusableFile
from rtit.image.image import Image
from rtit.image.mappings import FOREVER, KERNEL_START, Mapping, has_file

_LARGEST = 1 << 24
_WORD = re.compile(r"(?P<cr3>\w+)(?:,(?P<vmcs>\w+))?=(?P<machine>[0-9]{1,10})/(?P<pid>[0-9]{1,10})")
_LINE = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ..x. ([0-9a-f]{1,16}) \S+ \d+ +(/.*)")


@dataclass(frozen=True, slots=True)
class GuestProcess:
    """What runs while NR is 1 and CR3 is `cr3` (and the VMCS pointer `vmcs`, if that is not None)
    in the virtual machine that is process `machine`, 0 if that is not told. `rows`: start, end,
    offset and file of each mapping that is executable.
    """

    cr3: int
    vmcs: int | None
    machine: int
    rows: tuple[tuple[int, int, int, str], ...]

    @property
    def key(self) -> tuple[int, int] | tuple[int, int, int]:
        """Its key among the spaces of a stream."""
        return (self.cr3, 1) if self.vmcs is None else (self.cr3, 1, self.vmcs)

    @classmethod
    def named(cls, text: str, mount: str | os.PathLike[str] | None) -> GuestProcess:
        """CR3[,VMCS]=MACHINE/PID: process PID of what is mounted at `mount`/MACHINE. Raises
        UsageError for another form, and for a process whose maps cannot be read.
        """
        found = _WORD.fullmatch(text)
        try:
            numbers = [int(found[name], 0) if found and found[name] else None for name in _NUMBERS]
        except ValueError:
            numbers = [None]
        cr3, vmcs = numbers[0], numbers[-1]
        if found is None or cr3 is None:
            raise UsageError(f"--guest-process takes CR3[,VMCS]=MACHINE/PID, not {text!r}")
        if mount is None:
            raise UsageError("--guest-process goes with --guestmount: files of guests are there")
        root = Path(mount, found["machine"]).resolve()
        place = root / "proc" / found["pid"] / "maps"
        try:
            if not stat.S_ISREG(place.stat().st_mode):
                raise UsageError(f"--guest-process {text}: {place} is not a regular file")
            with place.open("rb") as file:
                content = file.read(_LARGEST).decode(errors="replace")
        except OSError as error:
            raise UsageError(f"--guest-process {text}: {place}: {error.strerror}") from error
        return cls(cr3, vmcs, int(found["machine"]), tuple(_rows(content, root)))

    def image(self, kernel: Image | None, files: Files) -> tuple[Image, list[Problem]]:
        """Its code, with that of the guest's kernel, and what is not known of it."""
        image, problems = Image() if kernel is None else kernel.fork(FOREVER), []
        for start, end, offset, path in self.rows:
            problem = None
            try:
                if files.path_outside_pack(path) is not None and os.path.realpath(path) != path:
                    message = "a link: it may lead out of the guest"
                    raise UnusableFile(Problem("unreadable", path, message))
                image.native.map(0, start, files.read_code(path, offset, end - start))
            except UnusableFile as error:
                problem = error.problem
                problems.append(problem)
            image.mappings.add(Mapping(start, end, offset, path, None, 0, problem=problem))
        return image, problems


_NUMBERS = ("cr3", "vmcs")


def read_processes(
    texts: Iterable[str], mount: str | os.PathLike[str] | None
) -> list[GuestProcess]:
    """Each as `GuestProcess.named` has it. Raises UsageError, also for two that have one key."""
    found: dict[object, GuestProcess] = {}
    for text in texts:
        process = GuestProcess.named(text, mount)
        if found.setdefault(process.key, process) is not process:
            raise UsageError(f"--guest-process {text}: another one has this CR3; ,VMCS tells apart")
    return list(found.values())


def _rows(content: str, root: Path) -> list[tuple[int, int, int, str]]:
    found = []
    for line in content.splitlines():
        words = _LINE.fullmatch(line)
        if words is None or not has_file(words[4]):
            continue
        start, end, offset = (int(words[number], 16) for number in (1, 2, 3))
        if start < end <= KERNEL_START and offset < KERNEL_START:
            found.append((start, end, offset, f"{root}{words[4]}"))
    return found
