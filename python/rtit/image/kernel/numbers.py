"""What stands for a kernel, and for who runs in virtual machines, among the processes of a host."""

from __future__ import annotations

import re

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
