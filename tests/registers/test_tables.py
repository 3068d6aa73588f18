"""The register tables: addresses, bit positions, decode, encode, explain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rtit.registers import (
    CTL,
    FULL,
    MSRS,
    OUTPUT_MASK_PTRS,
    STATUS,
    Field,
    Msr,
    Register,
    RegisterFile,
)
from rtit.unit.output import TOPA_ENTRY

# Positions as printed in Tables 33-6 and 33-7, and the bits that those tables call reserved.
CTL_BITS = {
    "TraceEn": (0, 0),
    "CYCEn": (1, 1),
    "OS": (2, 2),
    "User": (3, 3),
    "PwrEvtEn": (4, 4),
    "FUPonPTW": (5, 5),
    "FabricEn": (6, 6),
    "CR3Filter": (7, 7),
    "ToPA": (8, 8),
    "MTCEn": (9, 9),
    "TSCEn": (10, 10),
    "DisRETC": (11, 11),
    "PTWEn": (12, 12),
    "BranchEn": (13, 13),
    "MTCFreq": (17, 14),
    "CycThresh": (22, 19),
    "PSBFreq": (27, 24),
    "EventEn": (31, 31),
    "ADDR0_CFG": (35, 32),
    "ADDR1_CFG": (39, 36),
    "ADDR2_CFG": (43, 40),
    "ADDR3_CFG": (47, 44),
    "DisTNT": (55, 55),
    "InjectPsbPmiOnEnable": (56, 56),
}
CTL_RESERVED = {18, 23, *range(28, 31), *range(48, 55), *range(57, 64)}
STATUS_BITS = {
    "FilterEn": (0, 0),
    "ContextEn": (1, 1),
    "TriggerEn": (2, 2),
    "Error": (4, 4),
    "Stopped": (5, 5),
    "PendPSB": (6, 6),
    "PendTopaPMI": (7, 7),
    "PacketByteCnt": (48, 32),
}
STATUS_RESERVED = {3, *range(8, 32), *range(49, 64)}


@pytest.mark.parametrize(
    ("register", "positions", "reserved"),
    [(CTL, CTL_BITS, CTL_RESERVED), (STATUS, STATUS_BITS, STATUS_RESERVED)],
    ids=["CTL", "STATUS"],
)
def test_field_positions_equal_the_manuals_tables(
    register: Register, positions: dict[str, tuple[int, int]], reserved: set[int]
) -> None:
    assert {row.name: (row.high, row.low) for row in register.fields} == positions
    assert register.reserved_mask == sum(1 << bit for bit in reserved)


@pytest.mark.spec("MSRGEN-008")
def test_msrs_have_the_addresses_of_the_manual() -> None:
    addresses = {msr.name: int(msr) for msr in Msr}
    assert addresses == {
        "OUTPUT_BASE": 0x560,
        "OUTPUT_MASK_PTRS": 0x561,
        "CTL": 0x570,
        "STATUS": 0x571,
        "CR3_MATCH": 0x572,
        "ADDR0_A": 0x580,
        "ADDR0_B": 0x581,
        "ADDR1_A": 0x582,
        "ADDR1_B": 0x583,
        "ADDR2_A": 0x584,
        "ADDR2_B": 0x585,
        "ADDR3_A": 0x586,
        "ADDR3_B": 0x587,
    }
    assert set(MSRS) == set(Msr)


@pytest.mark.spec("MSRCTL-001", "MSRGEN-006")
def test_msrs_have_the_reset_values_of_the_manual() -> None:
    for msr, register in MSRS.items():
        assert register.reset == (0x7F if msr == Msr.OUTPUT_MASK_PTRS else 0)
        assert RegisterFile().read(msr) == register.reset


def test_decoded_fields_are_attributes_and_items() -> None:
    fields = CTL.decode(0x0100_0001 | 9 << 14 | 2 << 44)
    assert (fields.TraceEn, fields.PSBFreq, fields.MTCFreq, fields.ADDR3_CFG) == (1, 1, 9, 2)
    assert fields["User"] == 0
    assert int(fields) == 0x0100_0001 | 9 << 14 | 2 << 44
    with pytest.raises(AttributeError, match="IA32_RTIT_CTL has no field Nope"):
        _ = fields.Nope


def test_encode_rejects_values_beyond_the_field() -> None:
    assert CTL.encode(TraceEn=1, BranchEn=1, MTCFreq=3) == 0xE001
    assert CTL.replace(0xE001, TraceEn=0) == 0xE000
    with pytest.raises(ValueError, match="no field Nope"):
        CTL.encode(Nope=1)
    with pytest.raises(ValueError, match="MTCFreq has 4 bits: 0x10"):
        CTL.encode(MTCFreq=16)
    with pytest.raises(ValueError, match="64 bits"):
        CTL.decode(1 << 64)
    with pytest.raises(ValueError, match="64 bits"):
        CTL.decode(-1)


def test_overlapping_fields_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"X\.B"):
        Register("X", "", (Field("A", 3, 0, ""), Field("B", 5, 3, "")))


def test_output_mask_ptrs_is_split_into_its_fields() -> None:
    fields = OUTPUT_MASK_PTRS.decode(0x0000_1234_0000_00FF)
    assert (fields.LowerMask, fields.MaskOrTableOffset, fields.OutputOffset) == (0x7F, 1, 0x1234)
    assert OUTPUT_MASK_PTRS.encode(OutputOffset=5) == 0x5_0000_007F


@pytest.mark.spec("TOPA-011")
def test_topa_entry_fields_have_the_bits_of_the_manual() -> None:
    assert {row.name: (row.high, row.low) for row in TOPA_ENTRY.fields} == {
        "END": (0, 0),
        "INT": (2, 2),
        "STOP": (4, 4),
        "Size": (9, 6),
        "Base": (63, 12),
    }
    assert TOPA_ENTRY.reserved_mask == sum(1 << bit for bit in (1, 3, 5, 10, 11))


@pytest.mark.spec("CPUID-011", "CPUID-012")
def test_warm_reset_follows_ip_filtering() -> None:
    before = RegisterFile(*range(0x1001, 0x1001 + 13))
    kept = before.copy()
    kept.reset_warm(replace(FULL, mtc=False, psb_cyc=False))
    assert kept.ctl == 0x1000
    kept.ctl = before.ctl
    assert kept == before
    cleared = before.copy()
    cleared.reset_warm(replace(FULL, ip_filtering=False))
    assert cleared == RegisterFile()
    before.reset_cold()
    assert before == RegisterFile()


@pytest.mark.spec("MSRCTL-030", "MSRCTL-031", "MSRCTL-032", "MSRCTL-033", "MSRADR-004")
def test_register_file_returns_configured_address_ranges() -> None:
    registers = RegisterFile(ctl=0x2010 << 32, addr1_a=5, addr1_b=6, addr3_b=9)
    assert registers.address_ranges() == ((0, 0, 0), (1, 5, 6), (0, 0, 0), (2, 0, 9))
    registers = RegisterFile(ctl=0x1212 << 32 | 0x2_F000_0000, addr0_b=4, addr2_a=7, addr2_b=8)
    assert registers.address_ranges() == ((2, 0, 4), (1, 0, 0), (2, 7, 8), (1, 0, 0))
