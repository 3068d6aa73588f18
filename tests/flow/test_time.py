"""The time column: TSC, lower bounds, from TSC, MTC, TMA, CYC and CBR."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from rtit.packets import encode, encode_tnt

core = pytest.importorskip("rtit._core", reason="the native module is not built")

# 1000 jmp rax: a run of one instruction a TIP
CODE = bytes.fromhex("ffe0")


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def branch() -> bytes:
    """Encode a branch that ends the open run and begins another."""
    return ip_packet("TIP", 0x1000)


def times(*packets: bytes, lost: bool = False, **settings: Any) -> list[int]:
    """Return the start times of the runs, of which the first begins with a PGE and others at
    `branch()`.
    """
    space = core.Space()
    space.map(0, 0x1000, CODE)
    head = encode("PSB") + encode("PSBEND") + b"\x99\x01"
    stream = head + b"".join(packets) + ip_packet("FUP", 0x1000) + encode("TIP.PGD", ip_bytes=0)
    flow = core.StreamDecoder(stream, space, **settings)
    found = array("Q")
    while (rows := flow.rows(2)) is not None:
        found.extend(rows["time"])
    assert lost or [row[2] for row in flow.ledger()] == ["exact"]
    return list(found)


def tsc(value: int) -> bytes:
    return encode("TSC", tsc=value)


PGE = ip_packet("TIP.PGE", 0x1000)


@pytest.mark.spec("TSC-003", "DEC-016")
def test_rows_have_the_time_of_the_last_tsc() -> None:
    # the run begins after the first TSC; only its end shows that later ones came after it
    assert times(tsc(1000), PGE, tsc(2000), branch(), branch()) == [1000, 2000]
    assert times(tsc(1000), PGE, branch(), tsc(3000), branch()) == [1000, 1000]


@pytest.mark.spec("TSC-003")
def test_tsc_wraps_at_56_bits() -> None:
    near = 0x01FFFFFFFFFFFF00
    stream = [tsc(near & (1 << 56) - 1), PGE, branch(), tsc(5), branch(), branch()]
    assert times(*stream, start_time=near) == [near, near, 0x0200000000000005]


@pytest.mark.spec("TIME-001", "TIME-006", "TIME-007", "TIME-008", "MTC-005", "TIME-005")
@pytest.mark.parametrize(
    ("mtc_freq", "ctc", "fast", "payload", "elapsed"),
    [
        # TSC + CTC_Delta * P - FastCounter, P = 168 / 2
        (0, 0x0010, 0, 0x11, 84),
        (3, 0x0010, 30, 0x03, 8 * 84 - 30),
        (3, 0xFFF8, 0, 0x01, 16 * 84),  # of FFF8H and 0008H the low 11 bits are compared
        (3, 0x1234, 0, 0x47, 4 * 84),  # of 1234H only the low 11 bits again
        (9, 0x1234, 5, 0x0A, (0x1400 - 0x1234) * 84 - 5),
        (12, 0x0FFF, 0, 0x31, 84),  # bits above 15 are not in TMA
    ],
)
def test_first_mtc_after_tma_advances_time_by_elapsed_ticks(
    mtc_freq: int, ctc: int, fast: int, payload: int, elapsed: int
) -> None:
    packets = [tsc(1 << 40), encode("TMA", ctc=ctc, fast_counter=fast), PGE]
    packets += [encode("MTC", ctc=payload), branch(), branch()]
    found = times(*packets, mtc_freq=mtc_freq, tsc_ctc=(168, 2))
    assert found == [1 << 40, (1 << 40) + elapsed]


@pytest.mark.spec("MTC-004", "TIME-005")
def test_mtcs_count_modulo_256_and_may_be_lost() -> None:
    packets = [tsc(1000), encode("TMA", ctc=0xFE, fast_counter=0), PGE]
    for payload in (0xFF, 0x00, 0x03):
        packets += [encode("MTC", ctc=payload), branch()]
    found = times(*packets, branch(), mtc_freq=0, tsc_ctc=(3, 1))
    assert found == [1000, 1003, 1006, 1015]


@pytest.mark.spec("OVF-010")
def test_mtcs_lost_in_an_overflow_are_counted() -> None:
    packets = [tsc(1000), encode("TMA", ctc=0xFE, fast_counter=0), PGE, encode("MTC", ctc=0xFF)]
    packets += [
        branch(),
        encode("OVF"),
        encode("MTC", ctc=0x03),
        ip_packet("FUP", 0x1000),
        branch(),
    ]
    found = times(*packets, branch(), lost=True, mtc_freq=0, tsc_ctc=(3, 1))
    # five ticks after the first; three of them have no packet
    assert found[-2:] == [1015, 1015]


@pytest.mark.spec("TIME-010")
@pytest.mark.parametrize("value", [1010, 5000])
def test_estimate_is_not_later_than_next_tsc(value: int) -> None:
    packets = [tsc(1000), encode("CBR", ratio=10), PGE, encode("CYC", cycles=20), branch()]
    packets += [tsc(value), encode("CYC", cycles=2), branch(), branch()]
    assert times(*packets, max_nonturbo_ratio=10) == [1000, min(1020, value), value + 2]


def test_mtcs_without_a_known_crystal_are_ignored() -> None:
    packets = [tsc(1000), encode("TMA", ctc=1, fast_counter=0), PGE, encode("MTC", ctc=9), branch()]
    assert times(*packets, branch()) == [1000, 1000]


@pytest.mark.spec("TIME-009", "TIME-011", "CYC-015")
def test_cycles_scale_with_the_ratio() -> None:
    packets = [tsc(1000), encode("CBR", ratio=20), PGE, encode("CYC", cycles=10)]
    packets += [encode("CYC", cycles=5), branch(), encode("CYC", cycles=1), branch(), branch()]
    assert times(*packets, max_nonturbo_ratio=40) == [1000, 1030, 1032]
    assert times(*packets) == [1000, 1000, 1000]  # the ratio of the TSC is not known


@pytest.mark.spec("CBR-003")
def test_new_ratio_holds_from_its_cbr() -> None:
    packets = [tsc(1000), encode("CBR", ratio=10), PGE, encode("CYC", cycles=10)]
    packets += [encode("CBR", ratio=40), branch(), encode("CYC", cycles=20), branch(), branch()]
    assert times(*packets, max_nonturbo_ratio=20) == [1000, 1020, 1030]


def counts(*packets: bytes, **settings: Any) -> Any:
    return core.StreamDecoder(
        encode("PSB") + encode("PSBEND") + b"".join(packets), core.Space(), **settings
    ).count()


def measured(*packets: bytes, **settings: Any) -> tuple[int, int]:
    """Core cycles and TSC ticks between known times."""
    found = counts(*packets, **settings)
    return found["measured_cycles"], found["measured_ticks"]


def psb_at(value: int) -> bytes:
    """Encode a PSB+ while tracing is on."""
    return encode("PSB") + tsc(value) + ip_packet("FUP", 0x1000) + encode("PSBEND")


@pytest.mark.spec("TIME-012")
def test_frequency_is_cycles_divided_by_time() -> None:
    # between two TSCs, and between two MTCs: 4 TSC ticks a crystal tick
    packets = [psb_at(1000), encode("CYC", cycles=50), psb_at(1100)]
    assert measured(*packets) == (50, 100)
    packets = [tsc(1000), encode("TMA", ctc=0, fast_counter=0), encode("MTC", ctc=1)]
    packets += [encode("CYC", cycles=6), encode("MTC", ctc=3)]
    assert measured(*packets, tsc_ctc=(4, 1)) == (6, 8)
    # what an overflow interrupts is no measure; nor is the time in which nothing was counted
    cut = [psb_at(1000), encode("CYC", cycles=50), encode("OVF"), psb_at(1100)]
    assert measured(*cut) == (0, 0)
    assert measured(psb_at(1000), encode("CYC", cycles=50), tsc(1100)) == (0, 0)


def test_cycles_use_the_latest_measured_frequency() -> None:
    packets = [psb_at(1000), PGE, encode("CYC", cycles=50), encode("PSB") + tsc(1100)]
    packets += [
        ip_packet("FUP", 0x1000),
        encode("PSBEND"),
        encode("CYC", cycles=10),
        branch(),
        branch(),
    ]
    assert times(*packets)[-1] == 1120


def test_cyc_counts_cycles_before_an_mtc_without_cyc() -> None:
    # with a threshold no CYC comes with the second MTC; 60 cycles are 120 ticks
    packets = [tsc(1000), encode("TMA", ctc=0, fast_counter=0), encode("CBR", ratio=10), PGE]
    packets += [encode("CYC", cycles=50), encode("MTC", ctc=1), branch(), encode("MTC", ctc=2)]
    packets += [branch(), encode("CYC", cycles=60), branch(), branch()]
    found = times(*packets, max_nonturbo_ratio=20, tsc_ctc=(100, 1))
    assert found == [1000, 1100, 1200, 1220]
    # it is not before the MTC
    packets[-3] = encode("CYC", cycles=30)
    assert times(*packets, max_nonturbo_ratio=20, tsc_ctc=(100, 1)) == [1000, 1100, 1200, 1200]


@pytest.mark.spec("TIME-013")
def test_guest_tsc_is_scaled_and_offset() -> None:
    def guest(host: int) -> int:
        return host // 2 + 7000  # a multiplier of 2^47 / 2^48

    enter = encode("PIP", nr=1, cr3=0x5000)
    packets = [tsc(10_000), enter, tsc(guest(20_000)), PGE, encode("PIP", nr=0, cr3=0x5000)]
    packets += [tsc(30_000), branch(), branch()]
    assert times(*packets, guest_tsc=(7000, 1 << 47)) == [20_000, 30_000]
    # MTCs have the host's clock: 10 crystal ticks of 3
    clock = [enter, tsc(guest(20_000)), encode("TMA", ctc=0, fast_counter=0), PGE]
    clock += [encode("MTC", ctc=10), branch(), branch()]
    found = times(*clock, guest_tsc=(7000, 1 << 47), tsc_ctc=(3, 1))
    assert found == [20_000, 20_030]
    assert times(enter, tsc(500), PGE, branch()) == [500]


@pytest.mark.spec("TIME-016")
def test_time_without_tracing_does_not_count_as_cycles() -> None:
    # 30 cycles at half the TSC's frequency, and a TSC at 5000
    packets = [tsc(1000), encode("CBR", ratio=10), encode("CYC", cycles=30), tsc(5000)]
    assert counts(*packets, max_nonturbo_ratio=20)["inactive_ticks"] == 5000 - 1060
    assert counts(tsc(1000), encode("CBR", ratio=10), max_nonturbo_ratio=20)["inactive_ticks"] == 0
    # one in PSB+ tells of no gap
    packets = [psb_at(1000), encode("CBR", ratio=10), encode("CYC", cycles=30), psb_at(5000)]
    assert counts(*packets, max_nonturbo_ratio=20)["inactive_ticks"] == 0


@pytest.mark.spec("CYC-009", "CYC-017")
def test_cyc_before_a_tnt_is_the_time_of_its_first_branch() -> None:
    # 1000 jnz 1002; 1002 jnz 1000: taken each time
    space = core.Space()
    space.map(0, 0x1000, bytes.fromhex("750075fc"))
    stream = encode("PSB") + encode("PSBEND") + tsc(1000) + encode("CBR", ratio=10) + b"\x99\x01"
    stream += PGE + encode("CYC", cycles=7) + encode_tnt(2, 0b11) + encode("CYC", cycles=9)
    stream += encode_tnt(1, 1)
    flow = core.StreamDecoder(stream, space, max_nonturbo_ratio=10)
    rows = flow.rows(1000)
    assert list(array("Q", rows["time"])) == [1000, 1007, 1007]


@pytest.mark.spec("TIME-016")
def test_psb_while_tracing_is_off_does_not_set_the_frequency() -> None:
    """The counter stood still between them: its cycles do not cover all the time."""

    group = encode("PSB") + tsc(9000) + encode("CBR", ratio=10)
    off = encode("TIP.PGD", ip_bytes=0) + group + encode("PSBEND")
    packets = [psb_at(1000), encode("CBR", ratio=10), encode("CYC", cycles=100)]
    space = core.Space()
    space.map(0, 0x1000, CODE)
    for later, ratio, inactive in ((off, (0, 0), 7800), (psb_at(9000), (100, 8000), 0)):
        stream = b"".join(packets) + later
        found = core.StreamDecoder(stream, space, max_nonturbo_ratio=20).count()
        # at half the TSC's frequency 100 cycles are 200 ticks
        assert (found["measured_cycles"], found["measured_ticks"]) == ratio
        assert found["inactive_ticks"] == inactive
