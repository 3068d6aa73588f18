"""Register tables are inverses, and a write either obeys the rules or changes nothing."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rtit.errors import GeneralProtection
from rtit.registers import (
    CTL,
    FULL,
    LEAVES,
    MSRS,
    PROFILES,
    Msr,
    Profile,
    Register,
    RegisterFile,
    is_canonical,
    wrmsr,
)
from rtit.unit.output import TOPA_ENTRY
from support.properties import examples

REGISTERS = [
    *MSRS.values(),
    TOPA_ENTRY,
    *(row for leaf in LEAVES.values() for row in leaf.values()),
]
U64 = st.integers(0, 2**64 - 1)
SPARSE = st.lists(st.integers(0, 63), max_size=4).map(lambda bits: sum({1 << bit for bit in bits}))
VALUES = st.one_of(U64, SPARSE)

FILES = st.builds(RegisterFile, **dict.fromkeys((row.name for row in fields(RegisterFile)), VALUES))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Draw a named profile, or FULL without some capabilities and with other limits."""
    profile = draw(st.sampled_from(list(PROFILES.values())))
    if draw(st.booleans()):
        return profile
    flags = [row.name for row in fields(Profile) if isinstance(getattr(FULL, row.name), bool)]
    missing: dict[str, Any] = dict.fromkeys(draw(st.sets(st.sampled_from(flags))), False)
    profile = replace(FULL, **missing)
    return replace(
        profile,
        ranges=draw(st.integers(1, 4)),
        mtc_periods=draw(st.integers(0, 0xFFFF)),
        maxphyaddr=draw(st.sampled_from([36, 39, 46, 52])),
        linear_width=draw(st.sampled_from([32, 48, 57])),
    )


@pytest.mark.parametrize("register", REGISTERS, ids=lambda register: register.name)
@given(value=U64)
@example(value=0)
@example(value=2**64 - 1)
def test_encode_inverts_decode(register: Register, value: int) -> None:
    value &= (1 << register.width) - 1
    decoded = register.decode(value)
    assert int(decoded) == value
    assert register.encode(**decoded) == value & ~register.reserved_mask
    assert register.replace(value, **decoded) == value
    for name, content in decoded.items():
        assert getattr(decoded, name) == content


@pytest.mark.parametrize("register", REGISTERS, ids=lambda register: register.name)
@given(data=st.data())
def test_decode_inverts_encode(register: Register, data: st.DataObject) -> None:
    contents = {
        row.name: data.draw(st.integers(0, (1 << row.width) - 1)) for row in register.fields
    }
    assert dict(register.decode(register.encode(**contents))) == contents


def test_fields_cover_the_register_without_overlap() -> None:
    for register in REGISTERS:
        masks = [row.mask for row in register.fields] + [register.reserved_mask]
        assert sum(masks) == (1 << register.width) - 1


@pytest.mark.spec("MSRGEN-005")
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("msr", Msr)
@given(registers=FILES, rest=VALUES)
@examples(15)
def test_reserved_bit_faults_and_changes_nothing(
    profile: Profile, msr: Msr, registers: RegisterFile, rest: int
) -> None:
    registers.ctl &= ~1
    register = MSRS[msr]
    reserved = register.reserved_mask
    if msr == Msr.OUTPUT_BASE:
        reserved |= (1 << 64) - (1 << profile.maxphyaddr)
    for row in register.fields:
        if row.capability is not None and not getattr(profile, row.capability):
            reserved |= row.mask
    before = registers.copy()
    for bit in range(64):
        if reserved >> bit & 1:
            with pytest.raises(GeneralProtection):
                wrmsr(registers, msr, rest | 1 << bit, profile=profile)
            assert registers == before


@given(registers=FILES, msr=st.sampled_from(Msr), value=VALUES, profile=profiles(), vmx=...)
def test_write_succeeds_or_changes_nothing(
    registers: RegisterFile, msr: Msr, value: int, profile: Profile, vmx: bool
) -> None:
    before = registers.copy()
    try:
        old = wrmsr(registers, msr, value, profile=profile, vmx=vmx)
    except GeneralProtection:
        assert registers == before
        return
    assert old == before.read(msr)
    kept = {Msr.STATUS: 0b111, Msr.OUTPUT_MASK_PTRS: 0x7F}.get(msr, 0)
    assert registers.read(msr) & ~kept == value & ~kept
    assert registers.read(msr) & kept == before.read(msr) & kept
    registers.write(msr, old)
    before.write(msr, old)
    assert registers == before


@given(ctl=VALUES, value=VALUES, profile=profiles())
def test_while_tracing_ctl_keeps_its_value_or_loses_trace_en(
    ctl: int, value: int, profile: Profile
) -> None:
    registers = RegisterFile(ctl=ctl | 1)
    try:
        wrmsr(registers, Msr.CTL, value, profile=profile)
    except GeneralProtection:
        return
    assert registers.ctl == ctl | 1 or not CTL.decode(registers.ctl).TraceEn


@given(value=U64, width=st.sampled_from([48, 57]))
def test_canonical_is_sign_extension(value: int, width: int) -> None:
    low = value & ((1 << width) - 1)
    extended = low | (((1 << 64) - (1 << width)) if low >> (width - 1) else 0)
    assert is_canonical(extended, width)
    assert is_canonical(value, width) == (value == extended)
