"""Where the code and the names of a kernel are."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from rtit.image.kept import Problem

FOLDER = "kcore_dir"
"""What `perf record --kcore` makes in the directory of a recording."""


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """Files of the kernel that was recorded, each None if there is none.

    `kcore`: a copy of /proc/kcore, or that file itself; `kallsyms`: one of /proc/kallsyms;
    `vmlinux`: the kernel as it was linked; `modules`: the folder with its modules, such as
    /lib/modules/RELEASE. `early`: the copy was made before the recording began. Of files that were
    packed `problems` says what was wrong where that was done; they are there as long as `owner` is.
    """

    kcore: str | None = None
    kallsyms: str | None = None
    vmlinux: str | None = None
    modules: str | None = None
    early: bool = False
    problems: tuple[Problem, ...] = ()
    owner: object = field(default=None, compare=False, repr=False)

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any((self.kcore, self.kallsyms, self.vmlinux, self.modules))

    def or_of(self, other: KernelFiles) -> KernelFiles:
        """With what `other` has where these have nothing; its code only if these have none."""
        code = self if self.kcore or self.vmlinux else other
        return KernelFiles(
            kcore=code.kcore,
            vmlinux=code.vmlinux,
            early=code.early,
            kallsyms=self.kallsyms or other.kallsyms,
            modules=self.modules or other.modules,
            problems=self.problems if self.any else other.problems,
            owner=(self.owner, other.owner),
        )

    def beside(self, folder: str | None) -> KernelFiles:
        """With what `perf record --kcore` put into the directory of a recording."""
        if folder is None:
            return self
        copies = Path(folder) / FOLDER
        kcore, kallsyms = copies / "kcore", copies / "kallsyms"
        there = KernelFiles(
            kcore=os.fspath(kcore) if kcore.is_file() else None,
            kallsyms=os.fspath(kallsyms) if kallsyms.is_file() else None,
            early=True,
        )
        return self.or_of(there)
