"""What stands for a kernel, and for who runs in virtual machines, among the processes of a host.

Where the code and the names of a kernel are.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from rtit.errors import UsageError
from rtit.image.files import Problem

KERNEL = -1
"""What stands for the kernel where processes are meant, as in the records of perf."""
GUEST = -(1 << 32)
"""The same for that of guests."""


def guest_pid(machine: int) -> int:
    """What stands for the kernel of a virtual machine where processes are meant: `machine` is the
    process that it is for its host, 0 for all that are not told apart.
    """
    return GUEST - machine


def process_in_guest(machine: int, number: int) -> int:
    """What stands for a process, or a thread, of a virtual machine among those of its host."""
    return 2 * GUEST - (machine << 31) - number


def machine_of(path: str, pid: int) -> int:
    """Of which virtual machine a mapping of a guest's kernel is, by its name or its process."""
    number = re.match(r"\[guest\.kernel\.kallsyms\.([0-9]{1,10})\]", path)
    return int(number[1]) if number is not None else max(pid, 0)


_PROCESS = re.compile(r"[1-9][0-9]{0,9}")
FOLDER = "kcore_dir"
"""What `perf record --kcore` makes in the directory of a recording."""


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """Files of the kernel that was recorded, each None if there is none.

    `kcore`: a copy of /proc/kcore, or that file itself; `kallsyms`: one of /proc/kallsyms;
    `vmlinux`: the kernel as it was linked; `modules`: the folder with its modules, such as
    /lib/modules/RELEASE; `listed`: a copy of /proc/modules, for modules that the recording does not
    name. `early`: the copy was made before the recording began. Of files that were
    packed `problems` says what was wrong where that was done; they are there as long as `owner` is.
    """

    kcore: str | None = None
    kallsyms: str | None = None
    vmlinux: str | None = None
    modules: str | None = None
    listed: str | None = None
    early: bool = False
    problems: tuple[Problem, ...] = ()
    owner: object = field(default=None, compare=False, repr=False)

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any((self.kcore, self.kallsyms, self.vmlinux, self.modules, self.listed))

    def or_of(self, other: KernelFiles) -> KernelFiles:
        """With what `other` has where these have nothing; its code only if these have none."""
        code = self if self.kcore or self.vmlinux else other
        return KernelFiles(
            kcore=code.kcore,
            vmlinux=code.vmlinux,
            early=code.early,
            kallsyms=self.kallsyms or other.kallsyms,
            modules=self.modules or other.modules,
            listed=self.listed or other.listed,
            problems=self.problems if self.any else other.problems,
            owner=(self.owner, other.owner),
        )

    def beside(self, folder: str | None, guest: int = 0) -> KernelFiles:
        """With what `perf record --kcore` put into the directory of a recording, or what `perf
        inject` did of the virtual machine that is process `guest`.
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
        return self.or_of(there)


def guests_below(mount: str | os.PathLike[str] | None) -> dict[int, KernelFiles]:
    """The kernels of virtual machines whose root file systems are mounted below a folder, each in
    one that is called as its process, as `perf kvm --guestmount` has it. Raises UsageError for what
    is no folder.
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
    """A regular file of the guest: a link may lead out of it."""
    return path.is_file() and not path.is_symlink()
