"""How a thread ended and how many of its instructions were traced, in its PERF_RECORD_EXIT.

The kernel's record has neither. Ours carries them between the record's own fields and its
sample_id, which readers look for at the record's end: stock perf passes over what is between.
Little-endian, each if it is known: `rtit-end`, wait status u32, flags u32, si_code i32, zero u32,
si_addr u64, IP u64; `rtit-ran`, instructions u64.
"""

from __future__ import annotations

import signal
import struct
from dataclasses import dataclass
from enum import IntFlag

_MAGIC = b"rtit-end"
_LAYOUT = struct.Struct("<8sIIiIQQ")
_COUNT_MAGIC = b"rtit-ran"
_COUNT = struct.Struct("<8sQ")


class _Flag(IntFlag):
    PROCESS = 1
    TOOK_SIGNAL = 2
    FAULT = 4


@dataclass(frozen=True, slots=True)
class Fault:
    """The instruction at `ip` did not retire; `code` is its signal's si_code, `address` its
    si_addr: the address that could not be reached (SIGSEGV, SIGBUS) or `ip` itself (SIGILL,
    SIGFPE). A kernel that does not tell the address (SI_KERNEL) has 0 there.
    """

    ip: int
    code: int
    address: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How a thread ended.

    `status` is a wait status as waitpid(2) gives it. `of_process`: the whole process ended so;
    otherwise this thread alone is known to have. `took_signal`: the signal that ended the process
    was this thread's; `fault`: the instruction that caused it, if one did.
    """

    status: int
    of_process: bool = False
    took_signal: bool = False
    fault: Fault | None = None

    @property
    def signal(self) -> int | None:
        """The number of the signal that ended it; None if it exited."""
        return self.status & 0x7F or None

    @property
    def signal_name(self) -> str:
        """`SIGSEGV`; "" if it exited."""
        return signal_name(self.signal) if self.signal is not None else ""

    @property
    def exit_code(self) -> int | None:
        """0..255; None if a signal ended it."""
        return None if self.signal else self.status >> 8 & 0xFF

    def __str__(self) -> str:
        """`exit code 3`, or `SIGSEGV at address 0x10, instruction 0x401000`."""
        if self.signal is None:
            return f"exit code {self.exit_code}"
        if self.fault is None:
            return self.signal_name
        return (
            f"{self.signal_name} at address {self.fault.address:#x}, instruction {self.fault.ip:#x}"
        )


def signal_name(number: int) -> str:
    """`SIGSEGV`, `SIGRTMIN+2`, or `signal 99` for what is none."""
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def pack_ending(ending: Ending) -> bytes:
    """What an EXIT record carries of it."""
    flags = _Flag(0)
    if ending.of_process:
        flags |= _Flag.PROCESS
    if ending.took_signal:
        flags |= _Flag.TOOK_SIGNAL
    if ending.fault is not None:
        flags |= _Flag.FAULT
    fault = ending.fault or Fault(0, 0, 0)
    return _LAYOUT.pack(_MAGIC, ending.status, flags, fault.code, 0, fault.address, fault.ip)


def unpack_ending(data: bytes) -> Ending | None:
    """The inverse of `pack_ending`; None for anything else, such as the nothing that perf has."""
    if len(data) < _LAYOUT.size or not data.startswith(_MAGIC):
        return None
    _, status, flags, code, _, address, ip = _LAYOUT.unpack_from(data)
    return Ending(
        status & 0xFFFF,
        of_process=bool(flags & _Flag.PROCESS),
        took_signal=bool(flags & _Flag.TOOK_SIGNAL),
        fault=Fault(ip, code, address) if flags & _Flag.FAULT else None,
    )


def pack_instructions(instructions: int) -> bytes:
    """What an EXIT record carries of the number of traced instructions, after the ending."""
    return _COUNT.pack(_COUNT_MAGIC, instructions)


def unpack_instructions(data: bytes) -> int | None:
    """The number of traced instructions that an EXIT record carries; None if it has none."""
    start = _LAYOUT.size if data.startswith(_MAGIC) else 0
    if len(data) < start + _COUNT.size or not data.startswith(_COUNT_MAGIC, start):
        return None
    return int(_COUNT.unpack_from(data, start)[1])
