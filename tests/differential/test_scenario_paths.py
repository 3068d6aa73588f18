"""libipt decodes the paths of the scenario programs, except for the listed ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from differential.oracles import libipt
from differential.oracles.raw import Section
from scenario.paths import UNTOLD, deviating_scenarios, programs
from scenario.program import Program

UNKNOWN_PACKETS = {"CFE", "EVD", "BBP", "BIP", "BEP"}
"""Packets that libipt 2.0.5 does not know: it loses the stream at the first of them."""

EXPECTED_DIFFERENCES: dict[str, set[str]] = {
    **UNTOLD,
    "libipt binds a PIP and the TIP.PGD of the next MOV CR3 to one MOV CR3 (33.4.2.7: the PIP is "
    "that of the first)": {"cr3_filter_pae", "cyc_before_pip"},
    "libipt binds a TIP.PGD without IP to no conditional branch (33.4.2.5: a taken one that leaves "
    "the range has neither result nor IP)": {
        "old_table_jump",
        "table_33_56_row_04_leave_filter",
        "trace_stop_conditional",
    },
    "libipt does not pop the CALL of an uncompressed RET (33.4.2.2: every RET pops)": {
        "ret_uncompressed_pops"
    },
    "libipt does not cut a return address to the width of the code or the operand": {
        "ret_truncated"
    },
    "libipt has no MODE.Exec with a FUP of its own": {
        "mode_change_without_branch",
        "table_33_59_row_22_cli_branches",
    },
    "libipt waits for the TIP of a FUP, and has none for INIT of an application processor or a "
    "VM exit that does not complete": {
        "init_ap_linear",
        "table_33_55_row_23_init_ap",
        "table_33_55_row_23_init_ap_paging",
        "table_33_55_row_24_sipi",
        "vm_exit_load_faults",
        "vmx_abort",
    },
    "libipt takes one PIP with a TIP, and a VM entry that fails late has two (33.5.2.5)": {
        "table_33_54_late_execution_concealed"
    },
    "libipt takes no other mode from a PSB+ than it knew, not even after OVF": {
        "overflow_changes_mode",
        "overflow_loses_the_mode",
    },
}
"""Scenarios of which libipt does not find the path, by reason."""


def decode_with_libipt(program: Program) -> tuple[list[int], bool]:
    """Return the path, and whether libipt reported no error (see `paths.Decode`)."""
    with tempfile.NamedTemporaryFile() as file:
        sections = []
        for address, data in program.sections():
            sections.append(Section(Path(file.name), file.tell(), len(data), address))
            file.write(data)
        file.flush()
        found = libipt.decode(program.raw, sections, filter_range=program.filter_range)
    return found.ips, not found.errors


@pytest.fixture(autouse=True)
def _needs_libipt() -> None:
    try:
        libipt.harness()
    except libipt.LibiptMissingError as error:
        pytest.skip(str(error))


def test_libipt_finds_the_paths_of_the_scenarios() -> None:
    found, _ = programs()
    known = [name for name, each in found.items() if each.packets.isdisjoint(UNKNOWN_PACKETS)]
    assert len(known) > 350
    assert deviating_scenarios(decode_with_libipt, known) == set().union(
        *EXPECTED_DIFFERENCES.values()
    )


def test_libipt_loses_streams_with_packets_of_later_processors() -> None:
    found, _ = programs()
    later = {name for name, each in found.items() if not each.packets.isdisjoint(UNKNOWN_PACKETS)}
    assert {name for name in later if decode_with_libipt(found[name])[1]} == set()
