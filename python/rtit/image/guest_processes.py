"""Processes of virtual machines, which the user names by CR3.

A recording of the host has no records of what a guest's process has mapped. The user mounts the
guest's root file system; /proc/PID/maps in it has the mappings, as of the time when it was read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rtit.errors import UsageError
from rtit.image.image import Image
from rtit.image.mapped_files import Files, UnusableFile
from rtit.image.mappings import FOREVER, KERNEL_START, Mapping, has_file
from rtit.image.problems import Problem

_MAX_SIZE = 1 << 24
_OPTION = re.compile(
    r"(?P<cr3>\w+)(?:,(?P<vmcs>\w+))?=(?P<machine>[0-9]{1,10})/(?P<pid>[0-9]{1,10})"
)
_LINE = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ..x. ([0-9a-f]{1,16}) \S+ \d+ +(/.*)")


@dataclass(frozen=True, slots=True)
class GuestProcess:
    """A process of a virtual machine. It runs while NR is 1, CR3 is `cr3`, and, if `vmcs` is not
    None, the VMCS pointer is `vmcs`.

    `machine` is the pid of the machine's process on the host, 0 if that is unknown. `rows`: start,
    end, offset and file of each executable mapping.
    """

    cr3: int
    vmcs: int | None
    machine: int
    rows: tuple[tuple[int, int, int, str], ...]

    @property
    def key(self) -> tuple[int, int] | tuple[int, int, int]:
        """The key among the address spaces of a stream."""
        return (self.cr3, 1) if self.vmcs is None else (self.cr3, 1, self.vmcs)

    @classmethod
    def parse(cls, text: str, mount: str | os.PathLike[str] | None) -> GuestProcess:
        """Return the process for `CR3[,VMCS]=MACHINE/PID`; the guest is mounted at `mount`/MACHINE.

        Raises UsageError for another form, or if the maps of the process cannot be read.
        """
        found = _OPTION.fullmatch(text)
        try:
            numbers = [int(found[name], 0) if found and found[name] else None for name in _NUMBERS]
        except ValueError:
            numbers = [None]
        cr3, vmcs = numbers[0], numbers[-1]
        if found is None or cr3 is None:
            raise UsageError(f"--guest-process takes CR3[,VMCS]=MACHINE/PID, not {text!r}")
        if mount is None:
            raise UsageError("--guest-process needs --guestmount, which has the files of guests")
        root = Path(mount, found["machine"]).resolve()
        maps = root / "proc" / found["pid"] / "maps"
        try:
            if not stat.S_ISREG(maps.stat().st_mode):
                raise UsageError(f"--guest-process {text}: {maps} is not a regular file")
            with maps.open("rb") as file:
                content = file.read(_MAX_SIZE).decode(errors="replace")
        except OSError as error:
            raise UsageError(f"--guest-process {text}: {maps}: {error.strerror}") from error
        return cls(cr3, vmcs, int(found["machine"]), tuple(_parse_executable_maps(content, root)))

    def image(self, kernel: Image | None, files: Files) -> tuple[Image, list[Problem]]:
        """Return its code, with that of the guest's kernel, and the problems."""
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
    """Parse all of `texts`. Raises UsageError, also if two have the same key."""
    found: dict[object, GuestProcess] = {}
    for text in texts:
        process = GuestProcess.parse(text, mount)
        if found.setdefault(process.key, process) is not process:
            raise UsageError(f"--guest-process {text}: another one has this CR3; add ,VMCS")
    return list(found.values())


def _parse_executable_maps(content: str, root: Path) -> list[tuple[int, int, int, str]]:
    found = []
    for line in content.splitlines():
        words = _LINE.fullmatch(line)
        if words is None or not has_file(words[4]):
            continue
        start, end, offset = (int(words[number], 16) for number in (1, 2, 3))
        if start < end <= KERNEL_START and offset < KERNEL_START:
            found.append((start, end, offset, f"{root}{words[4]}"))
    return found
