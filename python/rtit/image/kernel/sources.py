"""Where the code and the names of a kernel are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

FOLDER = "kcore_dir"
"""What `perf record --kcore` makes in the directory of a recording."""


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """Files of the kernel that was recorded, each None if there is none.

    `kcore`: a copy of /proc/kcore, or that file itself; `kallsyms`: one of /proc/kallsyms;
    `vmlinux`: the kernel as it was linked; `modules`: the folder with its modules, such as
    /lib/modules/RELEASE. `early`: the copy was made before the recording began.
    """

    kcore: str | None = None
    kallsyms: str | None = None
    vmlinux: str | None = None
    modules: str | None = None
    early: bool = False

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any((self.kcore, self.kallsyms, self.vmlinux, self.modules))

    def beside(self, folder: str | None) -> KernelFiles:
        """With what `perf record --kcore` put into the directory of a recording, if nothing else is
        named.
        """
        if folder is None or self.any:
            return self
        copies = Path(folder) / FOLDER
        kcore, kallsyms = copies / "kcore", copies / "kallsyms"
        return KernelFiles(
            kcore=os.fspath(kcore) if kcore.is_file() else None,
            kallsyms=os.fspath(kallsyms) if kallsyms.is_file() else None,
            early=True,
        )
