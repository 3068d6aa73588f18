"""Order of the packets of an event: older results, then the CYC (33.3.6, 33.4.2.14)."""

from __future__ import annotations

from typing import Any

import pytest

from rtit.packets import Packet, iterate_packets
from rtit.unit.parameters.table import Parameters
from unit.every_event import CASES, HERE, run_event, start_traced

ELIGIBLE = {
    *("TIP", "TIP.PGE", "TIP.PGD", "MODE.Exec", "MODE.TSX", "PIP", "VMCS", "OVF", "MTC", "TSC"),
    *("PTW", "EXSTOP", "MWAIT"),
}
"""33.3.6.1, and MWAIT by its description; the CYC of a TNT belongs to its first result."""

RESTARTED = {"rsm", "xrstors"}
"""Events that resume tracing: the 7 cycles before them do not count. An ACM ends in the cycle in
which it began, whose CYC is already sent.
"""

LATER = RESTARTED | {"acm end", "sipi", "wake", "smm vm entry", "resume"}
"""Events after which no branch can have left results."""


def packets_of(
    name: str, parameters: Parameters | None = None, **ctl: int
) -> tuple[list[Packet], list[Packet]]:
    """Return the packets before an event and those of the event 7 cycles later, with a pending
    result.
    """
    case, out = CASES[name], bytearray()
    unit = start_traced(case, out, parameters, **ctl)
    if name not in LATER:
        unit.conditional(HERE, HERE + 2, HERE, False)
        unit.conditional(HERE, HERE + 2, HERE, True)
    before = list(iterate_packets(bytes(out)))
    del out[:]
    unit.at(10)
    run_event(unit, case)
    unit.flush()
    return before, list(iterate_packets(bytes(out)))


SETTINGS: dict[str, dict[str, Any]] = {
    "all": {},
    "user": {"OS": 0},
    "kernel": {"User": 0},
    "no branches": {"BranchEn": 0},
    "time": {"TSCEn": 1},
    "literal": {"parameters": Parameters(uintr_literal="table", vmx_abort_drop="tip")},
    "no reports": {"EventEn": 0, "parameters": Parameters(uintr_literal="table")},
    "told late": {
        "parameters": Parameters(
            failed_vmentry_packets=("CFE", "guest_pip", "trace_en", "host_pip"), ovf_psb="always"
        )
    },
}


@pytest.mark.spec("CYC-001", "CYC-002", "CYC-016")
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", [name for name in CASES if name != "acm end"])
def test_a_cycle_with_an_eligible_packet_begins_with_its_cyc(name: str, settings: str) -> None:
    before, found = packets_of(name, **SETTINGS[settings])
    names = [each.name for each in found if not each.name.startswith("TNT")]
    if ELIGIBLE & set(names):
        assert names[0] == "CYC", names
        cycles = [int(str(each.fields["cycles"])) for each in before + found if each.name == "CYC"]
        assert sum(cycles) == (3 if name in RESTARTED else 10)
    elif name.startswith("init"):
        assert "CYC" not in names


@pytest.mark.spec("TNT-008")
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", [name for name in CASES if name not in LATER])
def test_older_branch_results_precede_the_cyc(name: str, settings: str) -> None:
    names = [each.name for each in packets_of(name, **SETTINGS[settings])[1]]
    if "TNT" in names[1:]:
        assert set(names[: names.index("TNT")]) <= {"TNT"}, names
