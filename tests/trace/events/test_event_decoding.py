"""Decoding of packets that belong together into one event."""

from __future__ import annotations

import json
from dataclasses import replace

from rtit.packets import Value, encode
from rtit.trace import Selection, Stream, TimeRange
from rtit.trace.events import (
    CStateEntry,
    CStateExit,
    FrequencyChange,
    Interrupt,
    Overflow,
    PebsRecord,
    TraceEvent,
    TracingDisabled,
    Transaction,
    VmExit,
    describe_event,
    event_to_dict,
)
from support.streams import make_stream

CODE = {0x1000: "90" * 32, 0x2000: "90" * 32}


def ip(name: str, address: int) -> bytes:
    return encode(name, ip_bytes=6, payload=address)


def encode_cfe(kind: int, vector: int = 0, own: int = 0) -> bytes:
    return encode("CFE", ip=own, type=kind, vector=vector)


def encode_evd(kind: int, payload: int) -> bytes:
    return encode("EVD", type=kind, payload=payload)


def item(number: int, value: int) -> bytes:
    return encode("BIP", id=number, sz=0, payload=value)


def decode_events(packets: bytes) -> list[TraceEvent]:
    """Return the events of the packets, without those of the start of the stream."""
    return [
        each
        for each in decode_stream(packets).events()
        if each.offset >= len(decode_stream(b"").read())
    ]


def decode_stream(packets: bytes) -> Stream:
    return make_stream(packets, CODE)


def describe_events(packets: bytes) -> list[str]:
    return [describe_event(each) for each in decode_events(packets)]


def packet(name: str, **fields: Value) -> bytes:
    return encode(name, **fields)


def test_interrupt_has_its_vector_and_precedes_its_effects() -> None:
    """Table 33-59 row 4, with the PIP of Table 33-55 row 12."""
    packets = (
        encode_cfe(1, 32) + ip("FUP", 0x1004) + packet("PIP", nr=0, cr3=0x5000) + ip("TIP", 0x2000)
    )
    first, second = decode_events(packets)
    assert isinstance(first, Interrupt)
    assert (first.at, first.to, first.vector, first.cr2) == (0x1004, 0x2000, 32, None)
    assert describe_event(second) == "paging cr3=0x5000"


def test_page_fault_has_its_address() -> None:
    """Table 33-59 row 6."""
    (fault,) = decode_events(
        encode_evd(0, 0x1234) + encode_cfe(1, 14) + ip("FUP", 0x1002) + ip("TIP", 0x2000)
    )
    assert isinstance(fault, Interrupt)
    assert (fault.vector, fault.cr2) == (14, 0x1234)
    assert fault.offset == len(decode_stream(b"").read())


def test_vm_exit_has_reason_and_qualification_in_either_order() -> None:
    """Tables 33-53 and 33-59 name them in different orders."""
    for data in (
        encode_evd(1, 0xABC) + encode_evd(2, 28),
        encode_evd(2, 28) + encode_evd(1, 0xABC),
    ):
        (leave,) = decode_events(data + encode_cfe(8) + ip("FUP", 0x1002) + ip("TIP", 0x2000))
        assert isinstance(leave, VmExit)
        assert (leave.reason, leave.qualification, leave.vector) == (28, 0xABC, None)
        assert (leave.at, leave.to) == (0x1002, 0x2000)


def test_two_events_may_share_a_fup() -> None:
    """Section 33.6: an SMI with the dual-monitor treatment is a VM exit, too."""
    packets = encode_cfe(3) + encode_cfe(8) + ip("FUP", 0x1002) + ip("TIP", 0x2000)
    assert describe_events(packets) == ["SMI at=0x1002", "VM exit at=0x1002 to=0x2000"]


def test_event_with_suppressed_tip_ends_tracing() -> None:
    """Table 33-56 rows 7 and 3: without event trace their packets are the same."""
    suppressed = packet("TIP.PGD", ip_bytes=0)
    event, off = decode_events(encode_cfe(1, 3) + ip("FUP", 0x1002) + suppressed)
    assert isinstance(event, Interrupt)
    assert isinstance(off, TracingDisabled)
    assert (off.at, off.to, off.why) == (0x1002, None, "context")
    (unknown,) = decode_events(ip("FUP", 0x1002) + suppressed)
    assert isinstance(unknown, TracingDisabled)
    assert unknown.why == "event or TraceEn"


def test_enable_after_an_ending_event_is_reported() -> None:
    off = packet("TraceStop") + ip("TIP.PGE", 0x2000)
    assert describe_events(off) == ["stopped", "enabled ip=0x2000 why=stop"]
    left = ip("FUP", 0x1002) + packet("TIP.PGD", ip_bytes=0) + 3 * ip("TIP.PGE", 0x2000)
    assert describe_events(left)[:2] == [
        "disabled at=0x1002 why=event_or_TraceEn",
        "enabled ip=0x2000 why=event_or_TraceEn",
    ]
    assert describe_events(left)[-1] == "enabled ip=0x2000"


def test_transaction_steps_have_addresses() -> None:
    """Table 33-10."""
    begin, abort = packet("MODE.TSX", in_tx=1, tx_abort=0), packet("MODE.TSX", in_tx=0, tx_abort=1)
    packets = begin + ip("FUP", 0x1001) + abort + ip("FUP", 0x1004) + ip("TIP", 0x2000)
    assert [
        (each.step, each.at, each.to)
        for each in decode_events(packets)
        if isinstance(each, Transaction)
    ] == [
        ("begin", 0x1001, None),
        ("abort", 0x1004, 0x2000),
    ]


def test_pebs_record_has_named_registers() -> None:
    """Section 33.4.1.1: BBP ends the block before it; the names are those of Table 33-47."""
    blocks = packet("BBP", sz=0, type=4) + item(0, 0x1002) + item(2, 77)
    blocks += packet("BBP", sz=0, type=1) + item(2, 5) + packet("BBP", sz=0, type=8) + item(1, 9)
    (record,) = decode_events(blocks + packet("BEP", ip=1) + ip("FUP", 0x1002))
    assert isinstance(record, PebsRecord)
    assert (record.at, record.whole) == (0x1002, True)
    assert record.offset == len(decode_stream(b"").read())
    assert record.registers == {
        "Instruction Pointer": 0x1002,
        "Timestamp": 77,
        "R/EAX": 5,
        "LBR[TOS-0]_TO_IP": 9,
    }


def test_pebs_record_names_its_counters() -> None:
    """Table 33-47: item 1 of a Basic block has a bit for each counter; without it there may be one
    counter alone.
    """
    begin, end = packet("BBP", sz=0, type=4), packet("BEP", ip=1) + ip("FUP", 0x1004)
    both, none = begin + item(1, 1 << 3 | 1 << 33) + end, begin + item(0, 0x1004) + end

    def events(packets: bytes, counters: dict[int, str]) -> list[tuple[str, ...] | None]:
        happened = replace(decode_stream(packets), pebs_counters=counters).events()
        return [each.events for each in happened if isinstance(each, PebsRecord)]

    counters = {0: "branches:pp", 3: "cycles:ppp", 33: "loads:P"}
    assert events(both + none, counters) == [("cycles:ppp", "loads:P"), None]
    assert events(both + none, {0: "branches:pp"}) == [None, ("branches:pp",)]
    assert events(both + none, {}) == [None, None]
    assert events(both, {3: "cycles:ppp", 1 << 63: "wrong"}) == [("cycles:ppp",)]
    record = next(replace(decode_stream(both), pebs_counters=counters).events(), None)
    shown = [
        describe_event(each)
        for each in replace(decode_stream(both), pebs_counters=counters).events()
    ]
    assert record is not None
    assert any("events=cycles:ppp,loads:P" in line for line in shown)


def test_overflow_truncates_a_record() -> None:
    packets = packet("BBP", sz=0, type=4) + item(0, 0x1002) + packet("OVF") + ip("FUP", 0x2000)
    record, overflow = decode_events(packets)
    assert isinstance(record, PebsRecord)
    assert not record.whole
    assert isinstance(overflow, Overflow)
    assert overflow.ip == 0x2000


def test_overflow_has_last_address_and_duration() -> None:
    before = packet("EXSTOP", ip=1) + ip("FUP", 0x1004) + packet("TSC", tsc=(1 << 20) + 50)
    packets = before + packet("OVF") + packet("TSC", tsc=(1 << 20) + 900) + ip("FUP", 0x2000)
    *_, overflow = decode_events(packets)
    assert isinstance(overflow, Overflow)
    assert (overflow.time - (1 << 20), overflow.until - (1 << 20)) == (50, 900)
    assert (overflow.after, overflow.ip) == (0x1003, 0x2000)


def test_overflow_may_end_while_tracing_is_off() -> None:
    packets = packet("OVF") + packet("PIP", nr=0, cr3=0x3000) + ip("TIP.PGE", 0x2000)
    assert [line.partition(" until")[0] for line in describe_events(packets)] == [
        "overflow",
        "paging cr3=0x3000",
        "enabled ip=0x2000 why=overflow",
    ]


def test_sleep_and_wake_have_their_times() -> None:
    """Tables 33-57 and 33-58 (their captions are exchanged): MWAIT, PWRE, EXSTOP, FUP; PWRX."""
    enter = packet("MWAIT", hints=0x20, ext=1) + packet("PWRE", hw=0, state=2, sub_state=0)
    enter += packet("EXSTOP", ip=1) + ip("FUP", 0x1003)
    leave = packet("TSC", tsc=(1 << 20) + 700) + packet("PWRX", last=2, deepest=3, wake=4)
    sleep, wake = decode_events(enter + leave)
    assert isinstance(sleep, CStateEntry)
    assert (sleep.at, sleep.state, sleep.hints, sleep.extensions) == (0x1003, 2, 0x20, 1)
    assert isinstance(wake, CStateExit)
    assert wake.reasons == ("store",)
    assert wake.since == sleep.time
    assert wake.time - sleep.time == 700


def test_frequency_is_reported_when_it_changes() -> None:
    ratios = [packet("CBR", ratio=ratio) for ratio in (10, 12, 12, 10)]
    found = [
        each.ratio for each in decode_events(b"".join(ratios)) if isinstance(each, FrequencyChange)
    ]
    assert found == [12, 10]


def test_pending_events_at_the_end_are_reported() -> None:
    assert describe_events(encode_cfe(1, 9)) == ["interrupt vector=9"]
    assert describe_events(packet("PWRE", hw=1, state=0, sub_state=1)) == [
        "sleep state=C1 sub_state=1 hardware"
    ]
    assert describe_events(packet("MODE.TSX", in_tx=1, tx_abort=0)) == ["transaction step=begin"]


def test_memory_does_not_grow_with_events() -> None:
    found = decode_stream(1000 * (encode_cfe(1, 9) + packet("PIP", nr=0, cr3=0x3000))).events()
    kinds = [describe_event(each) for each in found]
    assert kinds.count("interrupt vector=9") == kinds.count("paging cr3=0x3000") == 1000


def test_json_has_the_fields_of_an_event() -> None:
    (record,) = decode_events(packet("BBP", sz=0, type=4) + item(0, 7) + packet("BEP", ip=0))
    assert json.loads(json.dumps(event_to_dict(record))) == {
        "event": "PEBS",
        "time": record.time,
        "offset": record.offset,
        "row": record.row,
        "at": None,
        "registers": {"Instruction Pointer": 7},
        "whole": True,
        "events": None,
    }


def test_events_are_selected_by_address_time_and_number() -> None:
    """The options are those of other rows."""
    later = encode("TSC", tsc=(1 << 20) + 500)
    packets = encode_cfe(1, 32) + ip("FUP", 0x1004) + ip("TIP", 0x2000) + later
    packets += encode_cfe(1, 33) + ip("FUP", 0x2008) + ip("TIP", 0x1000)
    whole = decode_stream(packets)

    def vectors(where: Selection) -> list[int | None]:
        found = whole.events(where)
        return [each.vector for each in found if isinstance(each, Interrupt)]

    early, late = TimeRange(last=(1 << 20) + 499), TimeRange(first=(1 << 20) + 500)
    assert vectors(Selection()) == [32, 33]
    assert vectors(Selection(ranges=((0x1004, 0x1005),))) == [32]
    assert vectors(Selection(ranges=((0x2000, 0x2008), (0x2009, 0x3000)))) == []
    assert vectors(Selection(time=early)) == [32]
    assert vectors(Selection(time=late)) == [33]
    assert vectors(Selection(time=late, ranges=((0x1004, 0x1005),))) == []
    assert vectors(Selection(tail=1)) == [33]
    assert vectors(Selection(tids=(whole.tid,))) == [32, 33]
    assert vectors(Selection(tids=(whole.tid + 1,))) == []
    everything = list(whole.events())
    for number in range(len(everything) + 2):
        assert list(whole.events(Selection(head=number))) == everything[:number]
        last = everything[-number:] if number else []
        assert list(whole.events(Selection(tail=number))) == last


def test_events_without_address_match_no_range() -> None:
    """A CBR has no address; an overflow has the address where tracing resumes."""
    packets = packet("CBR", ratio=20) + packet("OVF") + ip("FUP", 0x2004)
    whole = Selection(ranges=((0, 1 << 64),))
    found = list(decode_stream(packets).events(whole))
    assert [type(each) for each in found if not isinstance(each, Overflow)] == []
    assert [each.address for each in found] == [0x2004]
    assert FrequencyChange in [type(each) for each in decode_stream(packets).events()]
