"""PacketEn and its parts as pure functions (section 33.2.6)."""

from __future__ import annotations

from itertools import product

import pytest

from rtit.packets import iterate_packets
from rtit.processor import Processor
from rtit.registers import CTL, Msr
from rtit.unit.arch_state import ArchState
from rtit.unit.configuration import AddressRanges, Configuration, is_cr3_match
from rtit.unit.enables import compute_context_en, compute_packet_en, compute_trigger_en
from rtit.unit.memory import Memory
from rtit.unit.state import UnitState

BOTH = (False, True)


@pytest.mark.spec("EN-001")
def test_packet_en_is_the_and_of_the_other_four_enables() -> None:
    for trigger, context, inside, branch in product(BOTH, repeat=4):
        state = UnitState(trigger_en=trigger, context_en=context, filter_en=inside)
        wanted = all((trigger, context, inside, branch))
        assert compute_packet_en(state, Configuration(branch_en=branch)) is wanted


@pytest.mark.spec("EN-004", "EN-005")
def test_trigger_en_is_trace_en_without_stopped_and_error() -> None:
    for trace, stopped, error in product(BOTH, repeat=3):
        wanted = (trace, stopped, error) == (True, False, False)
        assert compute_trigger_en(trace_en=trace, stopped=stopped, error=error) is wanted


@pytest.mark.spec("EN-007", "FCPL-001", "FCR3-001", "FCR3-002")
def test_context_en_follows_cpl_cr3_and_enclave_filters() -> None:
    for os, user, cpl, enclave, cr3_filter, same in product(BOTH, BOTH, range(4), BOTH, BOTH, BOTH):
        configuration = Configuration(os=os, user=user, cr3_filter=cr3_filter, cr3_match=0x5000)
        arch = ArchState(cpl=cpl, cr3=0x5000 if same else 0x6000, opted_out_enclave=enclave)
        forbidden = (
            (not os and cpl == 0) or (not user and cpl > 0) or enclave or (cr3_filter and not same)
        )
        assert compute_context_en(configuration, arch) is not forbidden


def packet_names_with(field: str, value: int) -> set[str]:
    """Return the packet names of one event of each kind with a bit of IA32_RTIT_CTL at `value`.

    All code may be traced, and CR3 differs from IA32_RTIT_CR3_MATCH.
    """
    out = bytearray()
    cpu = Processor(
        memory=Memory(observer=lambda _, data: out.extend(data)), arch=ArchState(cpl=0, cr3=0x5000)
    )
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFFF)
    fields = {"OS": 1, "User": 1, "BranchEn": 1, "TraceEn": 1, field: value}
    cpu.set_msr(Msr.CTL, CTL.encode(**fields), next_ip=0x1000)
    cpu.at(100)
    cpu.conditional(0x1000, 0x1002, 0x1010, True)
    cpu.ptwrite(0x1010, 0x1014, 7)
    cpu.interrupt(0x1014, 0x2000)
    cpu.mwait(0x2000, 0x2003, 0x20)
    cpu.set_msr(Msr.CTL, 0)
    return {packet.name for packet in iterate_packets(bytes(out))}


@pytest.mark.parametrize(
    ("field", "names"),
    [
        pytest.param("CYCEn", {"CYC"}, marks=pytest.mark.spec("MSRCTL-004")),
        pytest.param("PwrEvtEn", {"MWAIT", "PWRE"}, marks=pytest.mark.spec("MSRCTL-007")),
        pytest.param("MTCEn", {"MTC"}, marks=pytest.mark.spec("MSRCTL-014")),
        pytest.param("TSCEn", {"TSC"}, marks=pytest.mark.spec("MSRCTL-015")),
        pytest.param("PTWEn", {"PTW"}, marks=pytest.mark.spec("MSRCTL-017")),
        pytest.param("EventEn", {"CFE"}, marks=pytest.mark.spec("MSRCTL-029")),
    ],
)
def test_set_bit_of_rtit_ctl_enables_its_packets(field: str, names: set[str]) -> None:
    assert not packet_names_with(field, 0) & names
    assert names <= packet_names_with(field, 1)


@pytest.mark.parametrize(
    ("field", "names"),
    [
        pytest.param("DisTNT", {"TNT"}, marks=pytest.mark.spec("MSRCTL-035")),
        pytest.param("CR3Filter", {"TNT", "FUP", "TIP"}, marks=pytest.mark.spec("MSRCTL-010")),
    ],
)
def test_set_bit_of_rtit_ctl_suppresses_its_packets(field: str, names: set[str]) -> None:
    assert names <= packet_names_with(field, 0)
    assert not packet_names_with(field, 1) & names


@pytest.mark.spec("FCR3-005", "PIP-003")
@pytest.mark.parametrize("os", [0, 1])
def test_task_switch_between_user_tasks_has_pip_only_with_os(os: int) -> None:
    out = bytearray()
    cpu = Processor(
        memory=Memory(observer=lambda _, data: out.extend(data)),
        arch=ArchState(cpl=3, cs_l=False, cs_d=True, lma=False, cr3=0x5000),
    )
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0xFFFF)
    # bits 11:0 of CR3 do not matter to the filter
    cpu.set_msr(Msr.CR3_MATCH, 0x5000)
    cpu.set_msr(Msr.CTL, CTL.encode(TraceEn=1, OS=os, User=1, BranchEn=1, CR3Filter=1), next_ip=1)
    assert [p.name for p in iterate_packets(bytes(out))].count("PIP") == os
    del out[:]
    cpu.far(0x1000, 0x2000, cr3=0x5018)
    assert [p.name for p in iterate_packets(bytes(out))] == ["PIP"] * os + ["TIP"]


@pytest.mark.spec("FCR3-003")
def test_cr3_match_ignores_only_the_low_bits() -> None:
    for bit in range(64):
        other = 0x1234_5678_9000 ^ 1 << bit
        assert is_cr3_match(other, 0x1234_5678_9000, pae_paging=False) is (bit < 12)
        assert is_cr3_match(other, 0x1234_5678_9000, pae_paging=True) is (bit < 5)


@pytest.mark.spec("FIP-005", "FIP-006", "EN-014")
def test_ranges_are_inclusive() -> None:
    ranges = AddressRanges.from_registers(
        [(1, 0x1000, 0x1FFF), (2, 0x3000, 0x3000), (0, 0, 0xFFFF)]
    )
    assert [ranges.filter_en(ip) for ip in (0xFFF, 0x1000, 0x1FFF, 0x2000)] == [
        False,
        True,
        True,
        False,
    ]
    assert [ranges.is_trace_stop(ip) for ip in (0x2FFF, 0x3000, 0x3001)] == [False, True, False]
    assert not AddressRanges.from_registers([(0, 0x1000, 0x1FFF)]).any_configured
    assert AddressRanges.from_registers([(2, 0x1000, 0x1FFF)]).filter_en(0x9000)
