"""Classes of x86 instructions: which packet, if any, reports the outcome of an instruction."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from rtit import _core
from rtit.errors import InputError

MAX_LENGTH = 15
"""Bytes of the longest instruction."""


class InstructionClass(IntEnum):
    """The classes that PT distinguishes (section 33.2.1, Table 33-1, and 33.4.2)."""

    OTHER = 0
    """No packet binds to it."""
    CONDITIONAL = 1
    """Jcc, J*CXZ, LOOP*: a TNT result."""
    JUMP = 2
    """Direct near JMP: no packet."""
    CALL = 3
    """Direct near CALL: no packet."""
    INDIRECT_JUMP = 4
    """JMP r/m, JMPABS: a TIP."""
    INDIRECT_CALL = 5
    """CALL r/m: a TIP."""
    RETURN = 6
    """Near RET: a TIP, or a TNT result when compressed."""
    FAR_TRANSFER = 7
    """Far JMP, CALL and RET, IRET, SYSRET, SYSEXIT, UIRET, ERETS, ERETU: a TIP."""
    SYSCALL = 8
    """SYSCALL, SYSENTER: a TIP, or TIP.PGD where the kernel is not traced."""
    SOFTWARE_INTERRUPT = 9
    """INT n, INT3, INT1, INTO: FUP and TIP."""
    VM_ENTRY = 10
    """VMLAUNCH, VMRESUME."""
    MOV_CR3 = 11
    """MOV to CR3: a PIP."""
    PTWRITE = 12
    """PTWRITE: a PTW."""
    VMPTRLD = 13
    """VMPTRLD: a VMCS packet."""
    XBEGIN = 14
    """XBEGIN: MODE.TSX."""
    XEND = 15
    """XEND: MODE.TSX."""
    XABORT = 16
    """XABORT: MODE.TSX."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    `ip` and `next_ip` are its address and that of the next instruction in memory; `length` 1 to 15
    bytes; `target` that of a direct branch or call (of XBEGIN: the abort handler), else None;
    `repeats`: a string instruction with a REP prefix, which is one instruction however often.
    """

    ip: int
    length: int
    kind: InstructionClass
    next_ip: int
    target: int | None = None
    repeats: bool = False


_WITH_TARGET = frozenset(
    (
        InstructionClass.CONDITIONAL,
        InstructionClass.JUMP,
        InstructionClass.CALL,
        InstructionClass.XBEGIN,
    )
)


def decode(data: bytes, ip: int, bits: int = 64) -> Instruction:
    """Return the instruction at `ip`, whose bytes start `data`; 15 bytes are always enough.

    `ip` has 64 bits; `bits` is the width of the code: 16, 32 or 64. Raises InputError if the bytes
    are none or end inside it, ValueError for another width, OverflowError for another `ip`.
    """
    try:
        length, number, target, repeats = _core.decode_instruction(data, ip, bits)
    except ValueError as error:
        if bits not in (16, 32, 64):
            raise
        shown = bytes(data[:MAX_LENGTH]).hex(" ")
        raise InputError(f"at {ip:#x}: {error}", value=shown) from None
    kind = InstructionClass(number)
    following = ip + length & ((1 << 64) - 1 if bits == 64 else (1 << 32) - 1)
    return Instruction(
        ip, length, kind, following, target if kind in _WITH_TARGET else None, repeats
    )
