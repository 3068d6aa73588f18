"""Limits of the architectural state and of VMX controls."""

from __future__ import annotations

from typing import Any

import pytest

from rtit.errors import UsageError
from rtit.registers import Msr
from rtit.unit.arch_state import ArchState, VmxControls

REAL: dict[str, Any] = {"real_mode": True, "lma": False, "cs_l": False}
V86: dict[str, Any] = {"v86": True, "lma": False, "cs_l": False}


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpl": 4},
        {"cpl": -1},
        {"cs_l": True, "cs_d": True},
        {**REAL, "lma": True},
        {**REAL, "v86": True},
        {"vmx": "guest"},
        {"cr3": 1 << 64},
        {"cs_base": 1 << 64},
        {"vmcs": 1 << 64},
        {"stm": 1 << 64},
    ],
)
def test_impossible_states_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ArchState(**wrong)


@pytest.mark.parametrize("name", ["cr3", "cs_base", "vmcs", "stm"])
def test_largest_values_are_accepted(name: str) -> None:
    last: dict[str, Any] = {name: (1 << 64) - 1}
    assert getattr(ArchState(**last), name) == last[name]


@pytest.mark.spec("FCPL-003")
def test_cpl_and_vmx_state_give_the_privilege() -> None:
    assert [ArchState(cpl=cpl).privilege for cpl in range(4)] == [0, 1, 2, 3]
    assert ArchState(**REAL, cpl=3).privilege == 0
    assert ArchState(**V86, cpl=0).privilege == 3


def test_impossible_code_width_is_rejected() -> None:
    for bits in (0, 48):
        with pytest.raises(UsageError, match=f"code of {bits} bits"):
            ArchState().with_code_bits(bits)
    with pytest.raises(UsageError, match="code of 64 bits"):
        ArchState(lma=False, cs_l=False).with_code_bits(64)


def test_state_after_reset_is_real_mode() -> None:
    """Volume 3, on initialization: real mode at F000:FFF0, interrupts off, CPL 0."""
    arch = ArchState.after_reset()
    assert (arch.real_mode, arch.lma, arch.cs_base, arch.interrupt_flag) == (
        True,
        False,
        0xFFFF_0000,
        False,
    )
    assert (arch.cpl, arch.cs_l, arch.cs_d, arch.cr3) == (0, False, False, 0)
    assert (arch.vmx, arch.vmcs, arch.in_smm, arch.in_tx) == ("off", None, False, False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tsc_offset": 1 << 64},
        {"tsc_offset": -(1 << 63) - 1},
        {"tsc_multiplier": 0},
        {"tsc_multiplier": 1 << 64},
        {"load_ctl": 1 << 64},
        {"load_ctl": -1},
        {"entry_loads": ((Msr.CTL, 1 << 64),)},
        {"exit_loads": ((Msr.CTL, -1),)},
    ],
)
def test_controls_beyond_their_fields_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        VmxControls(**wrong)


@pytest.mark.parametrize(
    "last",
    [
        {"tsc_offset": (1 << 64) - 1},
        {"tsc_offset": -(1 << 63)},
        {"tsc_multiplier": 1},
        {"tsc_multiplier": (1 << 64) - 1},
        {"load_ctl": 0},
        {"load_ctl": (1 << 64) - 1},
        {"entry_loads": ((Msr.CTL, 0),)},
        {"exit_loads": ((Msr.CTL, (1 << 64) - 1),)},
    ],
)
def test_largest_controls_are_accepted(last: dict[str, Any]) -> None:
    for name, value in last.items():
        assert getattr(VmxControls(**last), name) == value
