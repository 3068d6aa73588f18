"""PacketEn and its parts as pure functions (section 33.2.6)."""

from __future__ import annotations

from itertools import product

import pytest

from rtit.unit import Arch, State
from rtit.unit.enables import Configuration, context_en, packet_en, trigger_en
from rtit.unit.filtering import Ranges, cr3_matches

BOTH = (False, True)


@pytest.mark.spec("EN-001")
def test_packet_en_is_the_and_of_four() -> None:
    for trigger, context, inside, branch in product(BOTH, repeat=4):
        state = State(trigger_en=trigger, context_en=context, filter_en=inside)
        wanted = all((trigger, context, inside, branch))
        assert packet_en(state, Configuration(branch_en=branch)) is wanted


@pytest.mark.spec("EN-004", "EN-005")
def test_trigger_en() -> None:
    for trace, stopped, error in product(BOTH, repeat=3):
        wanted = (trace, stopped, error) == (True, False, False)
        assert trigger_en(trace_en=trace, stopped=stopped, error=error) is wanted


@pytest.mark.spec("EN-007", "FCPL-001", "FCR3-001", "FCR3-002")
def test_context_en_exhaustive() -> None:
    for os, user, cpl, enclave, cr3_filter, same in product(BOTH, BOTH, range(4), BOTH, BOTH, BOTH):
        configuration = Configuration(os=os, user=user, cr3_filter=cr3_filter, cr3_match=0x5000)
        arch = Arch(cpl=cpl, cr3=0x5000 if same else 0x6000, opted_out_enclave=enclave)
        forbidden = (
            (not os and cpl == 0) or (not user and cpl > 0) or enclave or (cr3_filter and not same)
        )
        assert context_en(configuration, arch) is not forbidden


@pytest.mark.spec("FCR3-003")
def test_cr3_match_by_bit() -> None:
    for bit in range(64):
        other = 0x1234_5678_9000 ^ 1 << bit
        assert cr3_matches(other, 0x1234_5678_9000, pae_paging=False) is (bit < 12)
        assert cr3_matches(other, 0x1234_5678_9000, pae_paging=True) is (bit < 5)


@pytest.mark.spec("FIP-005", "FIP-006", "EN-014")
def test_ranges_are_inclusive() -> None:
    ranges = Ranges.of([(1, 0x1000, 0x1FFF), (2, 0x3000, 0x3000), (0, 0, 0xFFFF)])
    assert [ranges.filter_en(ip) for ip in (0xFFF, 0x1000, 0x1FFF, 0x2000)] == [
        False,
        True,
        True,
        False,
    ]
    assert [ranges.stops(ip) for ip in (0x2FFF, 0x3000, 0x3001)] == [False, True, False]
    assert not Ranges.of([(0, 0x1000, 0x1FFF)]).used
    assert Ranges.of([(2, 0x1000, 0x1FFF)]).filter_en(0x9000)
