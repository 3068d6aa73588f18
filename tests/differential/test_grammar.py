"""rtit's packet scanner and libipt read the same in damaged streams from the packet grammar."""

from __future__ import annotations

import pytest

from differential.grammar import (
    EXPECTED_DIFFERENCES,
    CannotCompareError,
    Comparison,
    compare_streams,
)
from differential.oracles import libipt

STREAMS = 10_000


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    try:
        return compare_streams(0, STREAMS)
    except (CannotCompareError, libipt.LibiptMissingError) as error:
        pytest.skip(str(error))


def test_scanners_read_the_same_packets_or_differ_as_listed(comparison: Comparison) -> None:
    found = {(each.ours, each.theirs): each for each in comparison.differences}
    assert {pair: each for pair, each in found.items() if pair not in EXPECTED_DIFFERENCES} == {}
    assert {ours for ours, _ in EXPECTED_DIFFERENCES.keys() - found.keys()} <= {
        "long CYC"
    }  # 4 in a million
    assert comparison.streams == STREAMS
    assert comparison.packets > 18 * STREAMS


def test_both_scanners_refuse_damaged_packets(comparison: Comparison) -> None:
    assert comparison.refused > STREAMS / 10
