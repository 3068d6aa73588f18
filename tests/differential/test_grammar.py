"""Our packet scanner and libipt's read the same in streams from the packet grammar, damaged."""

from __future__ import annotations

import pytest

from differential.grammar import LISTED, CannotCompareError, Comparison, compared
from differential.oracles import libipt

STREAMS = 30_000


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    try:
        return compared(0, STREAMS)
    except (CannotCompareError, libipt.LibiptMissingError) as error:
        pytest.skip(str(error))


def test_the_same_packets_or_a_listed_reason(comparison: Comparison) -> None:
    found = {(each.ours, each.theirs): each for each in comparison.differences}
    assert {pair: each for pair, each in found.items() if pair not in LISTED} == {}
    assert {ours for ours, _ in LISTED.keys() - found.keys()} <= {"long CYC"}  # 4 in a million
    assert comparison.streams == STREAMS
    assert comparison.packets > 18 * STREAMS


def test_damage_is_seen_by_both(comparison: Comparison) -> None:
    assert comparison.refused > STREAMS / 10
