"""The code of the kernel, from copies of its memory or from files.

`kernel_files.py` says which files there are, and which pids stand for kernels and guests.
`kernel.py` builds the code from the records of a recording and these files; `code_changes.py`
applies code that changed while it was recorded. `kallsyms.py`, `kcore.py`, `vmlinux.py` and
`modules.py` each read one kind of file.
"""

from __future__ import annotations

from rtit.image.kernel.kernel_files import (
    GUEST_KERNEL_PID,
    KERNEL_PID,
    KernelFiles,
    guest_kernel_pid,
    guest_process_pid,
    machine_of_kernel_mapping,
)

__all__ = [
    "GUEST_KERNEL_PID",
    "KERNEL_PID",
    "KernelFiles",
    "guest_kernel_pid",
    "guest_process_pid",
    "machine_of_kernel_mapping",
]
