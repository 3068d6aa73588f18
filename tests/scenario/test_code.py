"""The trace of a scenario decodes to the path of its program."""

from __future__ import annotations

from array import array

import pytest

from rtit.scenario import LIBRARY, load, parse, run

core = pytest.importorskip("rtit._core", reason="the native module is not built")


def decode_scenario(name: str) -> list[int]:
    """Return the instructions that the decoder finds in the trace of a shipped scenario."""
    scenario = load(LIBRARY / f"{name}.scenario")
    space = core.Space()
    for address, data in scenario.code.items():
        space.map(0, address, data)
    flow = core.StreamDecoder(run(scenario).raw, space)
    ips = array("Q")
    while (part := flow.instructions(50)) is not None:
        ips.extend(part["ip"])
    return list(ips)


def test_scenario_code_disassembles_as_expected() -> None:
    # 1000: jz 1010; 1010: jmp *rax
    scenario = parse(
        "code 0x1000 74 0e\ncode 0x1010 ff e0\nctl User BranchEn\nenable 0x1000\n    ...\n"
        "conditional 0x1000 0x1002 0x1010 True\nindirect_jump 0x1010 0x2000\n    TNT T\n"
        "    TIP 0x2000\n",
        "x",
    )
    assert scenario.code == {0x1000: b"\x74\x0e", 0x1010: b"\xff\xe0"}
    assert run(scenario).as_expected


@pytest.mark.parametrize("name", ["table_33_19_no_deferral", "table_33_19_deferral"])
def test_trace_of_table_33_19_decodes_to_its_program(name: str) -> None:
    """The comments of the table give the path: the taken branches, and the target of JMP. A NOP
    fills each instruction of the table to 4 bytes.
    """
    assert decode_scenario(name) == [
        *(0x1000, 0x1004, 0x1006, 0x1008),
        *(0x1308, 0x130C, 0x130E, 0x1310, 0x1314),
        *(0x1500, 0x1504, 0x1506, 0x1508),
        *(0x1100, 0x1104, 0x1106, 0x1108, 0x110B),
    ]
