"""The files of kernels, and the numbers that stand for kernels and guests among host processes.

Images are found by pid. The host's kernel, the kernels of virtual machines and the processes of
virtual machines have negative pseudo pids, which no process of the host has.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from rtit.errors import UsageError
from rtit.image.problems import Problem

KERNEL_PID = -1
"""Pseudo pid of the kernel, as in perf's records."""
GUEST_KERNEL_PID = -(1 << 32)
"""Pseudo pid of a guest's kernel if machines are not told apart."""


def guest_kernel_pid(machine: int) -> int:
    """Return the pseudo pid of the kernel of a virtual machine.

    `machine` is the pid of the machine's process on the host; 0 if machines are not told apart.
    """
    return GUEST_KERNEL_PID - machine


def guest_process_pid(machine: int, number: int) -> int:
    """Return the pseudo pid or tid of a process or thread in a virtual machine."""
    return 2 * GUEST_KERNEL_PID - (machine << 31) - number


def machine_of_kernel_mapping(path: str, pid: int) -> int:
    """Return the machine of a mapping of a guest's kernel, from its path or pid."""
    number = re.match(r"\[guest\.kernel\.kallsyms\.([0-9]{1,10})\]", path)
    return int(number[1]) if number is not None else max(pid, 0)


def kallsyms_path(recording: str) -> str:
    """Return the path of the kernel symbols of a recorded system, beside the recording."""
    return f"{recording}.kallsyms"


_PROCESS = re.compile(r"[1-9][0-9]{0,9}")
FOLDER = "kcore_dir"
"""Folder in the directory of a recording by `perf record --kcore`."""


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """Paths of the files of a kernel, each None if there is none."""

    kcore: str | None = None
    """/proc/kcore or a copy of it."""
    kallsyms: str | None = None
    """/proc/kallsyms or a copy of it."""
    vmlinux: str | None = None
    modules: str | None = None
    """The folder of the module files, such as /lib/modules/RELEASE."""
    listed: str | None = None
    """A copy of /proc/modules, for modules that have no record."""
    early: bool = False
    """`kcore` was copied before the recording started."""
    problems: tuple[Problem, ...] = ()
    """Problems that were found when the files were packed."""
    owner: object = field(default=None, compare=False, repr=False)
    """The files exist as long as this object."""

    @property
    def has_files(self) -> bool:
        """Whether any path is set."""
        return any((self.kcore, self.kallsyms, self.vmlinux, self.modules, self.listed))

    def with_fallback(self, other: KernelFiles) -> KernelFiles:
        """Return these files, completed by those of `other`; code from `other` only if there is
        none.
        """
        code = self if self.kcore or self.vmlinux else other
        return KernelFiles(
            kcore=code.kcore,
            vmlinux=code.vmlinux,
            early=code.early,
            kallsyms=self.kallsyms or other.kallsyms,
            modules=self.modules or other.modules,
            listed=self.listed or other.listed,
            problems=self.problems if self.has_files else other.problems,
            owner=(self.owner, other.owner),
        )

    def with_recorded_copies(self, folder: str | None, guest: int = 0) -> KernelFiles:
        """Return these files, completed by the copies in the directory of a recording.

        The copies are of `perf record --kcore`, or of `perf inject` for the machine `guest`.
        """
        if folder is None:
            return self
        copies = Path(folder) / (f"{FOLDER}__{guest}" if guest else FOLDER)
        kcore, kallsyms = copies / "kcore", copies / "kallsyms"
        there = KernelFiles(
            kcore=os.fspath(kcore) if kcore.is_file() else None,
            kallsyms=os.fspath(kallsyms) if kallsyms.is_file() else None,
            early=True,
        )
        return self.with_fallback(there)


def find_guest_kernels(mount: str | os.PathLike[str] | None) -> dict[int, KernelFiles]:
    """Return the kernels of virtual machines with root file systems at `mount`/PID, by pid.

    This is the layout of `perf kvm --guestmount`. Raises UsageError if `mount` is not a folder.
    """
    found: dict[int, KernelFiles] = {}
    if mount is None:
        return found
    try:
        names = sorted(each.name for each in Path(mount).iterdir() if each.is_dir())
    except OSError as error:
        raise UsageError(f"--guestmount {os.fspath(mount)}: {error.strerror}") from error
    for name in names:
        if not _PROCESS.fullmatch(name):
            continue
        root = Path(mount, name)
        kcore, kallsyms, listed = (
            os.fspath(root / "proc" / name) if _is_file(root / "proc" / name) else None
            for name in ("kcore", "kallsyms", "modules")
        )
        modules = root / "lib" / "modules"
        folder = os.fspath(modules) if modules.is_dir() else None
        found[int(name)] = KernelFiles(kcore, kallsyms, modules=folder, listed=listed)
    return found


def _is_file(path: Path) -> bool:
    """Whether the path is a regular file of the guest. A link could lead out of the guest."""
    return path.is_file() and not path.is_symlink()
