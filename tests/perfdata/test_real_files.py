"""Files of real hardware, compared with what an independent parser listed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rtit.perfdata import AuxBuffer, PerfData, records

Message = dict[str, list[Any]]


def parse_text(text: str) -> Message:
    """Parse a text-format protocol buffer to name -> values; a nested message is a dict."""
    root: Message = {}
    stack = [root]
    for line in text.splitlines():
        word = line.strip()
        if word.endswith("{"):
            inner: Message = {}
            stack[-1].setdefault(word[:-1].strip(), []).append(inner)
            stack.append(inner)
        elif word == "}":
            stack.pop()
        elif word:
            name, _, value = word.partition(": ")
            stack[-1].setdefault(name, []).append(value)
    return root


@pytest.fixture(scope="module")
def listed(traces: Path) -> Message:
    return parse_text((traces / "chromeos" / "cpu-wide.records.txt").read_text())


def number(message: Message, name: str, default: int | None = None) -> int | None:
    """Return a field, as a signed 32-bit number if it is a pid or cpu."""
    if name not in message:
        return default
    value = int(message[name][0])
    return value - (1 << 32) if value == 0xFFFFFFFF else value


def text(message: Message, name: str) -> str:
    return str(message.get(name, ['""'])[0]).strip('"')


def check_who(record: records.Record, info: Message) -> None:
    """pid, tid, time, id and cpu of the sample_id, as far as the list has them."""
    assert record.sample_id is not None
    for field, name in (("pid", "pid"), ("tid", "tid"), ("id", "id"), ("cpu", "cpu")):
        if name in info:
            assert getattr(record.sample_id, field) == number(info, name)
    if "sample_time_ns" in info:
        assert record.time == int(info["sample_time_ns"][0])


def check_body(record: records.Record, event: Message) -> bool:
    """Compare a record with the list; return False for kinds without contents."""
    match record:
        case records.Mmap() | records.Mmap2():
            body = event["mmap_event"][0]
            assert (record.pid, record.tid) == (number(body, "pid"), number(body, "tid"))
            assert record.address == int(body["start"][0])
            assert record.length == int(body["len"][0])
            assert record.pgoff == int(body["pgoff"][0])
            assert record.path == text(body, "filename")
            if isinstance(record, records.Mmap2):
                found = (*(record.inode or ()), record.prot, record.flags)
                names = ("maj", "min", "ino", "ino_generation", "prot", "flags")
                assert found == tuple(int(body.get(name, ["0"])[0]) for name in names)
        case records.Comm():
            body = event["comm_event"][0]
            assert (record.pid, record.tid) == (number(body, "pid"), number(body, "tid"))
            assert record.comm == text(body, "comm")
        case records.Exit():
            body = event.get("exit_event", event.get("fork_event", [{}]))[0]
            for name in ("pid", "ppid", "tid", "ptid"):
                assert getattr(record, name) == number(body, name)
            assert record.clock == int(body["fork_time_ns"][0])
        case records.SwitchCpuWide():
            body = event["context_switch_event"][0]
            assert record.is_out == (body["is_out"][0] == "true")
            assert record.other_pid == number(body, "next_prev_pid")
            assert record.other_tid == number(body, "next_prev_tid")
        case records.Aux():
            body = event["aux_event"][0]
            assert record.aux_offset == int(body["aux_offset"][0])
            assert record.length == int(body["aux_size"][0])
            flags = ("is_truncated", "is_overwrite", "is_partial")
            assert [bool(record.flags >> i & 1) for i in range(3)] == [
                body.get(name, ["false"])[0] == "true" for name in flags
            ]
        case records.ItraceStart():
            body = event["itrace_start_event"][0]
            assert (record.pid, record.tid) == (number(body, "pid"), number(body, "tid"))
        case records.Sample():
            body = event["sample_event"][0]
            assert record.ip == int(body["ip"][0])
            assert record.period == number(body, "period")
            check_who(record, body)
            return True
        case records.Auxtrace():
            body = event["auxtrace_event"][0]
            for field, name in (("length", "size"), ("aux_offset", "offset"), ("idx", "idx")):
                assert getattr(record, field) == number(body, name)
            assert record.reference == int(body["reference"][0])
            assert (record.tid, record.cpu) == (number(body, "tid"), number(body, "cpu"))
            return True
        case records.AuxtraceInfo():
            body = event["auxtrace_info_event"][0]
            words = [int(value) for value in body["unparsed_binary_blob_priv_data"]]
            assert record.kind == int(body["type"][0])
            assert record.data == b"".join(word.to_bytes(8, "little") for word in words)
            return True
        case records.TimeConv():
            body = event["time_conv_event"][0]
            for name in ("time_shift", "time_mult", "time_zero"):
                assert getattr(record, name) == int(body[name][0])
            return True
        case _:
            return False
    check_who(record, body["sample_info"][0])
    return True


def test_records_match_perf_script(traces: Path, listed: Message) -> None:
    """257 records, in the order of the list (by time); those of one kind in the order of the
    file.
    """
    events = listed["events"]
    with PerfData(traces / "chromeos" / "cpu-wide.perf.data") as file:
        found = list(file.records())
    assert len(found) == len(events) == 257
    pending: dict[tuple[int, int, int], list[records.Record]] = {}
    for record in found:
        key = (record.type, record.time or 0, record.misc)
        pending.setdefault(key, []).append(record)
    checked = 0
    for event in events:
        header = event["header"][0]
        kind, misc, size = (int(header[name][0]) for name in ("type", "misc", "size"))
        record = pending[kind, int(event["timestamp"][0]), misc].pop(0)
        assert record.size == size
        checked += check_body(record, event)
    assert not any(pending.values())
    assert checked == 257 - 4  # FINISHED_ROUND has no contents


def test_attrs_and_features_match_perf(traces: Path, listed: Message) -> None:
    with PerfData(traces / "chromeos" / "cpu-wide.perf.data") as file:
        assert len(file.events) == len(listed["file_attrs"]) == 4
        for event, other in zip(file.events, listed["file_attrs"], strict=True):
            assert list(event.ids) == [int(value) for value in other["ids"]]
            attr = other["attr"][0]
            for name in ("type", "config", "sample_type", "sample_period", "read_format"):
                assert getattr(event.attr, name) == int(attr[name][0])
            assert event.attr.sample_id_all == (attr["sample_id_all"][0] == "true")
        assert [event.name for event in file.events] == [
            text(kind, "name") for kind in listed["event_types"]
        ]
        strings = listed["string_metadata"][0]
        assert file.hostname == text(strings["hostname"][0], "value")
        assert file.release == text(strings["kernel_version"][0], "value")
        assert file.version == text(strings["perf_version"][0], "value")
        assert file.arch == text(strings["architecture"][0], "value")
        assert file.cpu_description == text(strings["cpu_description"][0], "value")
        assert file.cpuid == text(strings["cpu_id"][0], "value")
        words = [text(token, "value") for token in strings["perf_command_line_token"]]
        assert file.command_line == words
        assert file.facts == {}
        assert file.pmus == {int(p["type"][0]): text(p, "name") for p in listed["pmu_mappings"]}


def unescape(literal: str) -> bytes:
    """Return the bytes of a text-format string."""
    plain = {"n": 10, "t": 9, "r": 13, '"': 34, "'": 39, "\\": 92}
    out = bytearray()
    for match in re.finditer(r"\\([0-7]{3})|\\(.)|(.)", literal):
        octal, escaped, char = match.groups()
        out.append(int(octal, 8) if octal else plain[escaped] if escaped else ord(char))
    return bytes(out)


def test_build_ids_match_perf(traces: Path, listed: Message) -> None:
    with PerfData(traces / "chromeos" / "cpu-wide.perf.data") as file:
        found = file.build_ids
    expected = {
        text(entry, "filename"): unescape(str(entry["build_id_hash"][0])[1:-1])
        for entry in listed["build_ids"]
    }
    assert len(expected) == 66
    assert found == expected


def test_aux_data_matches_perf(traces: Path) -> None:
    """The AUX records of each CPU cover its AUXTRACE records."""
    with PerfData(traces / "chromeos" / "cpu-wide.perf.data") as file:
        queues = file.auxtrace_buffers()
        assert set(queues) == {AuxBuffer(0, -1), AuxBuffer(3, -1)}
        produced = dict.fromkeys(queues, 0)
        for record in file.records():
            if isinstance(record, records.Aux):
                assert record.sample_id is not None
                assert record.sample_id.cpu is not None
                produced[AuxBuffer(record.sample_id.cpu, -1)] += record.length
        for queue, pieces in queues.items():
            size = sum(piece.size for piece in pieces)
            assert 0 <= size - produced[queue] < 8  # padding
            assert bytes(pieces[0].data).count(b"\x02\x82" * 8) > 0


def test_pipe_gives_same_result(traces: Path) -> None:
    """The same machine, written to a pipe: two AUX buffers, which stock perf cannot read."""
    with PerfData(traces / "chromeos" / "piped.perf.data") as file:
        assert file.incomplete is None
        assert [event.name for event in file.events][:2] == ["intel_pt//", "cycles"]
        assert file.cpuid == "GenuineIntel,6,78,3"
        assert file.info is not None
        assert (file.info.tsc_ctc_n, file.info.tsc_ctc_d) == (100, 2)
        produced: dict[int, int] = {}
        for record in file.records():
            if isinstance(record, records.Aux):
                assert record.sample_id is not None
                assert record.sample_id.cpu is not None
                cpu = record.sample_id.cpu
                produced[cpu] = produced.get(cpu, 0) + record.length
        sizes = {
            queue.cpu: sum(piece.size for piece in pieces)
            for queue, pieces in file.auxtrace_buffers().items()
        }
        assert produced.keys() == sizes.keys() == {0, 3}
        for cpu, size in sizes.items():
            assert 0 <= size - produced[cpu] < 8
