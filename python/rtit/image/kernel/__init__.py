"""The code of the kernel: one for all processes, from copies of memory or from files.

`sources.py` says which files there are, `numbers.py` what stands for it among processes,
`kernel.py` puts together what the records of a recording and these files tell, `changes.py` has
what came and went; `kallsyms.py`, `kcore.py`, `vmlinux.py` and `modules.py` read one kind each.
"""

from __future__ import annotations

from rtit.image.kernel.kernel import Kernel
from rtit.image.kernel.sources import (
    GUEST,
    KERNEL,
    KernelFiles,
    guest_pid,
    machine_of,
    process_in_guest,
)

__all__ = [
    "GUEST",
    "KERNEL",
    "Kernel",
    "KernelFiles",
    "guest_pid",
    "machine_of",
    "process_in_guest",
]
