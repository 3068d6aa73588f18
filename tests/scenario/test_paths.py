"""The traces of all scenarios decode to the paths of their programs, except those listed."""

from __future__ import annotations

from array import array

import pytest

from rtit.scenario import LIBRARY
from scenario.encoding import NoFitError, encode
from scenario.paths import NO_PROGRAM, UNTOLD, deviating_scenarios, matches_segments, programs
from scenario.program import Program, Segment

core = pytest.importorskip("rtit._core", reason="the native module is not built")


def decode(scenario_program: Program) -> tuple[list[int], bool]:
    """Decode a trace; see `paths.Decode`."""
    space = core.Space()
    for address, data in scenario_program.sections():
        space.map(0, address, data)
    flow = core.StreamDecoder(scenario_program.raw, space)
    ips = array("Q")
    while (part := flow.instructions(1000)) is not None:
        ips.extend(part["ip"])
    return list(ips), all(row[3] in (None, "loss reported by hardware") for row in flow.ledger())


def test_every_scenario_has_a_program_or_is_listed() -> None:
    found, without = programs()
    assert len(found) + len(without) == len(list(LIBRARY.glob("*.scenario")))
    listed = {name: words for words, names in NO_PROGRAM.items() for name in names}
    assert {name for name, why in without.items() if listed.get(name, "-") not in why} == set()
    assert without.keys() == listed.keys()
    assert sum(1 for each in found.values() if any(part.ips for part in each.segments)) > 280


def test_decoder_reconstructs_the_path_of_every_scenario() -> None:
    found, _ = programs()
    assert deviating_scenarios(decode, found) == set().union(*UNTOLD.values())


def test_path_with_lost_packets_may_end_early() -> None:
    parts = [Segment([1, 2, 3], least=2), Segment([7, 8], least=2)]
    assert matches_segments(parts, [1, 2, 7, 8])
    assert matches_segments(parts, [1, 2, 3, 7, 8])
    assert not matches_segments(parts, [1, 7, 8])
    assert not matches_segments(parts, [1, 2, 3, 7])
    assert not matches_segments(parts, [1, 2, 3, 4, 7, 8])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("conditional", 0x1000, 2, 0x1010, 64, None), "75 0e"),
        (("conditional", 0x1000, 6, 0x3000, 64, None), "0f 85 fa 1f 00 00"),
        (("jump", 0x1000, None, 0xF00, 64, None), "e9 fb fe ff ff"),
        (("call", 0x1000, 3, 0x1010, 16, None), "e8 0d 00"),
        (("ret", 0x1000, None, 0x5, 32, 16), "66 c3"),
        (("indirect_call", 0x1000, 3, 0x5, 64, None), "2e ff d0"),
    ],
)
def test_encoded_instructions_disassemble(
    arguments: tuple[str, int, int | None, int, int, int | None], code: str
) -> None:
    assert encode(*arguments) == bytes.fromhex(code)


def test_short_branch_with_far_target_is_rejected() -> None:
    with pytest.raises(NoFitError, match="no conditional of 2 bytes leads that far"):
        encode("conditional", 0x1000, 2, 0x3000, 64, None)
