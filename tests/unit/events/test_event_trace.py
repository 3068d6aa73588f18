"""Event trace beyond scenarios: types, rejected events, and reserved types that a reader must
accept (sections 33.4.2.29 and 33.4.2.30).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from rtit.errors import IllegalEvent, UsageError
from rtit.packets import iterate_packets
from rtit.packets.table import CFE_TYPES, EVD_TYPES
from rtit.processor import Processor
from rtit.registers import CTL, Msr
from rtit.unit.events.event_trace import CfeType, EvdType
from rtit.unit.memory import Memory


def machine(**ctl: int) -> tuple[Processor, bytearray]:
    out = bytearray()
    cpu = Processor(checked=False, memory=Memory(observer=lambda _, data: out.extend(data)))
    cpu.set_msr(Msr.OUTPUT_BASE, 0x1000_0000)
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, (1 << 22) - 1)
    cpu.set_msr(Msr.CTL, CTL.encode(TraceEn=1, OS=1, User=1, **ctl), next_ip=0x1000)
    del out[:]
    return cpu, out


def test_types_are_those_of_the_packet_table() -> None:
    later = {0xE: "SWINTR", 0xF: "SYSCALL"}  # FRED: the unit has none of it
    assert {kind.value: kind.name for kind in CfeType} | later == CFE_TYPES
    assert {kind.value: kind.name for kind in EvdType} == EVD_TYPES


@pytest.mark.spec("TAB50-011")
def test_reserved_type_is_read_with_its_fup() -> None:
    first, second = iterate_packets(bytes.fromhex("02138b00 3d0010"))
    assert (first.name, first.fields["type"], first.fields["ip"]) == ("CFE", 0x0B, 1)
    assert second.name == "FUP"


@pytest.mark.spec("TAB50-014")
@pytest.mark.parametrize("kind", range(0x0E, 0x20))
def test_types_of_later_processors_are_read(kind: int) -> None:
    (packet,) = iterate_packets(bytes((0x02, 0x13, kind, 0x80)))
    assert dict(packet.fields) == {"ip": 0, "type": kind, "vector": 0x80}
    assert kind not in set(CfeType)


def test_impossible_events_are_rejected() -> None:
    cpu, out = machine(BranchEn=1, EventEn=1)
    with pytest.raises(UsageError, match="cpl does not change without a branch"):
        cpu.change_mode(0x1000, 0x1001, cpl=0)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="no transaction is under way"):
        cpu.end_transaction(0x1000, 0x1003)
    with pytest.raises(UsageError, match="no transaction is under way"):
        cpu.abort_transaction(0x1000, 0x1003)
    with pytest.raises(ValueError, match="SIPI vector"):
        cpu.sipi(256)
    with pytest.raises(ValueError, match="4 or 8 bytes"):
        cpu.ptwrite(0x1000, 0x1004, 1 << 32, 4)
    with pytest.raises(ValueError, match="C-state"):
        cpu.unit.sleep(0x1000, 16)
    assert not out
    assert cpu.arch == replace(cpu.arch, in_tx=False)


@pytest.mark.spec("PWRX-002")
@pytest.mark.parametrize("reason", [0, 3, 16])
def test_wake_reason_with_several_bits_is_rejected(reason: int) -> None:
    cpu, out = machine(PwrEvtEn=1)
    cpu.halt(0x1000, 0x1001)
    del out[:]
    with pytest.raises(IllegalEvent, match="wake reason"):
        cpu.wake(last=1, deepest=1, reason=reason)
    assert not out
    cpu.wake(last=1, deepest=1, reason=8)
    assert out.endswith(bytes.fromhex("02a21108000000"))


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        pytest.param(0x01, 0x11, marks=pytest.mark.spec("BIP-004")),
        pytest.param(0x04, 0x02, marks=pytest.mark.spec("BIP-005")),
        pytest.param(0x05, 0x03, marks=pytest.mark.spec("BIP-006")),
        pytest.param(0x10, 0x1F, marks=pytest.mark.spec("BIP-008")),
    ],
)
def test_last_item_of_a_block_is_encoded_before_its_bep(kind: int, last: int) -> None:
    cpu, out = machine(BranchEn=1)
    with pytest.raises(IllegalEvent, match="no item"):
        cpu.pebs(0x1000, {kind: [(last + 1, 0)]})
    assert not out
    cpu.pebs(0x1000, {kind: [(last, 0x55)]})
    assert out.startswith(bytes((0x02, 0x63, kind, last << 3 | 4, 0x55)))


@pytest.mark.spec("BBP-002")
@pytest.mark.parametrize("kind", [0, 2, 3, 6, 7, 0x0B, 0x0F, 0x11, 0x1F])
def test_block_of_a_reserved_type_is_rejected(kind: int) -> None:
    cpu, out = machine(BranchEn=1)
    with pytest.raises(IllegalEvent, match="has no item"):
        cpu.pebs(0x1000, {kind: [(0, 0)]})
    with pytest.raises(IllegalEvent, match="no blocks of types"):
        cpu.pebs(0x1000, {kind: []})
    assert not out


@pytest.mark.spec("CFE-008")
@pytest.mark.parametrize("vector", [0, 2, 14, 0x20, 0xFF])
def test_vector_is_that_of_the_event(vector: int) -> None:
    cpu, out = machine(EventEn=1)
    cpu.interrupt(0x1000, 0xFFFF_FFFF_8100_0000, vector=vector)
    assert out[:4] == bytes((0x02, 0x13, 0x81, vector))
