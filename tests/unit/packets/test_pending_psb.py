"""A PSB due at the end of a trace is lost, or sets PendPSB (sections 33.2.8.4, 33.3.7).

The expected streams are complete, and typed byte by byte from the chapter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rtit.processor import Processor
from rtit.registers import CTL, STATUS, Msr
from rtit.unit.arch_state import ArchState, VmxControls
from rtit.unit.memory import Memory
from rtit.unit.output import TopaEntry, write_topa_table

TABLE, REGION, STOP = 0x10_0000, 0x20_0000, 0x8000
PERIOD = 2048
BEGIN = bytes.fromhex("02 03 0a 00 99 01 71 00 10 00 00 00 00")
"""CBR; MODE.Exec for 64-bit code; TIP.PGE 1000H, sign extended: PacketByteCnt is not 0, no PSB+."""
END = bytes.fromhex("3d 00 10 01")
"""FUP 1000H, TIP.PGD without an IP."""
TRACE_STOP = bytes.fromhex("21 00 80 02 83")
"""TIP.PGD 8000H, TraceStop."""
FILLED = bytes.fromhex("2d 34")
"""The part of TIP 1234H that fits in the region."""


def write(cpu: Processor, ctl: int) -> None:
    cpu.set_msr(Msr.CTL, ctl, next_ip=0x1000)


def enter_guest(cpu: Processor, ctl: int) -> None:
    """Trace only a guest."""
    controls = VmxControls(load_ctl=ctl, clear_ctl=True)
    cpu.vm_entry(0x9000, 0x1000, controls=controls)


@dataclass(frozen=True)
class Cause:
    """A way to clear TriggerEn, and the last bytes of its trace."""

    last: bytes
    happen: Callable[[Processor], object]
    begin: Callable[[Processor, int], None] = write
    second: int = REGION + 0x1000
    stop: bool = False


CAUSES = {
    "WRMSR": Cause(END, lambda cpu: cpu.set_msr(Msr.CTL, 0, ip=0x1000)),
    "VM exit": Cause(END, lambda cpu: cpu.vm_exit(0x1000, 0x9000), enter_guest),
    "SMI": Cause(END, lambda cpu: cpu.smi(0x1000)),
    "TraceStop": Cause(TRACE_STOP, lambda cpu: cpu.jump(0x1000, STOP)),
    "ToPA STOP": Cause(FILLED, lambda cpu: cpu.indirect_jump(0x1000, 0x1234), stop=True),
    "Error": Cause(FILLED, lambda cpu: cpu.indirect_jump(0x1000, 0x1234), second=1 << 1),
}


@pytest.mark.spec("PSB-014", "PSB-013", "MSRSTS-010", "MSRSTS-014")
@pytest.mark.parametrize("inject", [0, 1])
@pytest.mark.parametrize("name", CAUSES)
def test_psb_due_at_the_end_of_tracing_is_lost_or_pending(name: str, inject: int) -> None:
    cause = CAUSES[name]
    out = bytearray()
    memory = Memory(observer=lambda _, data: out.extend(data))
    arch = ArchState(vmx="root", vmcs=0x5000, cpl=0) if name == "VM exit" else ArchState()
    cpu = Processor(memory=memory, arch=arch)
    write_topa_table(memory, TABLE, [TopaEntry(REGION, stop=cause.stop), cause.second])
    size = len(BEGIN) + len(cause.last)
    room = size if cause.last == FILLED else 4096
    cpu.set_msr(Msr.OUTPUT_BASE, TABLE)
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 4096 - room << 32 | 0x7F)
    cpu.set_msr(Msr.ADDR0_A, STOP)
    cpu.set_msr(Msr.ADDR0_B, STOP)
    cpu.set_msr(Msr.STATUS, STATUS.encode(PacketByteCnt=PERIOD - size))
    settings = {"ADDR0_CFG": 2, "InjectPsbPmiOnEnable": inject}
    cause.begin(cpu, CTL.encode(TraceEn=1, OS=1, User=1, BranchEn=1, ToPA=1, **settings))
    assert bytes(out) == BEGIN
    cause.happen(cpu)
    assert bytes(out) == BEGIN + cause.last
    status = STATUS.decode(cpu.get_msr(Msr.STATUS))
    assert status.TriggerEn == 0
    assert status.PendPSB == inject
    assert status.PacketByteCnt == PERIOD
    assert status.Stopped == (name in ("TraceStop", "ToPA STOP"))
    assert status.Error == (name == "Error")
