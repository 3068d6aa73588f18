"""What the small numbers in columns stand for. A column compares with a member
(`rows.end == End.RETURN`), and a number becomes one (`End(rows.end[0]).label`).
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Self, TypeVar

_WORDS = {
    "MODE_EXEC": "mode.exec",
    "MODE_TSX": "mode.tsx",
    "DISAGREEMENT": "trace and code disagree",
    "HARDWARE_LOSS": "loss reported by hardware",
}


class Category(IntEnum):
    """A number with a name."""

    @property
    def label(self) -> str:
        """The name in words, as it is printed."""
        return _WORDS.get(self.name, self.name.lower().replace("_", " "))

    @classmethod
    def labelled(cls, label: str) -> Self:
        """The one of this label. Raises ValueError."""
        found: Self | None = _by_label(cls).get(label)
        if found is None:
            raise ValueError(f"no {cls.__name__} is called {label!r}")
        return found


_C = TypeVar("_C", bound=Category)


@cache
def _by_label(kind: type[_C]) -> dict[str, _C]:
    return {each.label: each for each in kind}


class End(Category):
    """Why a run of instructions ended: what its last instruction did, or what came between."""

    CUT = 0  # for no reason in the program: the run goes on in the next row
    CONDITIONAL = 1  # taken
    JUMP = 2
    CALL = 3
    INDIRECT_JUMP = 4
    INDIRECT_CALL = 5
    RETURN = 6
    FAR = 7  # far JMP, CALL, RET, IRET and their kin
    SYSCALL = 8
    EVENT = 9  # struck before the next instruction
    OFF = 10  # tracing was turned off after an instruction that is no transfer
    LOST = 11  # what followed is
    END_OF_STREAM = 12
    VM_ENTRY = 13  # VMLAUNCH, VMRESUME


class EventKind(Category):
    """What happened, and what an event's `ip` and `value` are then; 0 where nothing is said."""

    ENABLED = 1
    """TIP.PGE: tracing goes on at `ip`."""
    DISABLED = 2
    """TIP.PGD at a branch: `ip` the last instruction, `value` where it went, 0 if not known."""
    ASYNC = 3
    """FUP and TIP: struck before `ip`, went on at `value`."""
    ASYNC_DISABLED = 4
    """FUP and TIP.PGD: struck before `ip`; `value` where it went, 0 if not known."""
    OVERFLOW = 5
    """OVF: the processor lost packets."""
    STOPPED = 6
    """TraceStop."""
    RESUMED = 7
    """Decoding went on after a loss, at `ip`."""
    ERROR = 8
    """`ip` the bad value, `value` its `ErrorClass`; the ledger has the rest."""
    PSB = 9
    """`ip` that of its FUP, 0 if tracing is off."""
    PAGING = 10
    """PIP: `value` CR3, bit 0 NR."""
    VMCS = 11
    """`value` the pointer."""
    MODE_EXEC = 12
    """`value` bit 0 CS.L, bit 1 CS.D, bit 2 IF."""
    MODE_TSX = 13
    """`value` bit 0 InTX, bit 1 TXAbort."""
    PTWRITE = 14
    """PTW: `value` the operand, `ip` the PTWRITE, 0 if not known."""
    EXSTOP = 15
    MWAIT = 16
    """`value` hints, extensions << 32."""
    PWRE = 17
    """`value` sub C-state, C-state << 4, HW << 8."""
    PWRX = 18
    """`value` deepest, last << 4, wake reason << 8."""
    CBR = 19
    """`value` the ratio."""
    CFE = 20
    """`value` type, vector << 8."""
    EVD = 21
    """`ip` the type (no address), `value` the payload."""
    BLOCK_BEGIN = 22
    """BBP: `value` type, SZ << 8."""
    BLOCK_ITEM = 23
    """BIP: `ip` the ID (no address), `value` the payload."""
    BLOCK_END = 24
    """BEP."""
    MNT = 25
    """`value` the payload."""
    TRIG = 26
    """TRIG, later than the chapter: `value` TRBV, MULT << 8, ICNTV << 9, ICNT << 16; `ip` before
    which instruction, 0 if not known.
    """


class ErrorClass(Category):
    """What kind of error made bytes of a stream lost."""

    BAD_BYTES = 1
    CODE_NOT_FOUND = 2
    DISAGREEMENT = 3
    HARDWARE_LOSS = 4
    UNSUPPORTED = 5
    INCOMPLETE = 6
    REPEATS_UNKNOWN = 7
    """How often a loop without packets went round; once is told. Nothing is lost."""
    TURN_UNKNOWN = 8
    """Whether code ran before or after another thread came to have the CPU; it is told as that of
    the thread before. Nothing is lost.
    """


class Trust(Category):
    """What is known of bytes of a stream."""

    EXACT = 0
    RESUMED = 1
    """Decoded from an IP that a packet gave after a loss; no PSB has confirmed the state since."""
    LOST = 2
    """Not decoded into code that ran."""
    ELSEWHERE = 3
    """What another thread did, of whom nobody has asked."""
