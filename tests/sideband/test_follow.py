"""From a file's records to threads and spaces, in order of time whatever the order of the file."""

from __future__ import annotations

from pathlib import Path

from rtit.image import Images
from rtit.perfdata import PerfData, TimeConversion, Writer
from rtit.perfdata.records import Comm, Fork, TextPoke
from rtit.sideband import follow
from rtit.sideband.order import in_order

HALF = TimeConversion(shift=1, mult=1, zero=100)
"""A TSC of 2 GHz that was 0 at 100 ns of the perf clock."""


def written(path: Path) -> Path:
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3", time=HALF) as out:
        out.fork(3, 1, 3, 1, 300)
        out.comm(1, 1, 200, "sh")
        out.text_poke(1, 1, 150, 0x1000, b"\x90\xc3")
        out.comm(3, 3, 400, "ls", by_exec=True)
    return path


def test_records_come_in_order_of_time(tmp_path: Path) -> None:
    with PerfData(written(tmp_path / "perf.data")) as data:
        timed = in_order(data)
    ours = [(time, type(record)) for time, record in timed if time]
    assert ours == [(100, TextPoke), (200, Comm), (400, Fork), (600, Comm)]


def test_threads_and_spaces_learn_from_one_walk(tmp_path: Path) -> None:
    images = Images()
    with PerfData(written(tmp_path / "perf.data")) as data:
        threads = follow(data, images)
    assert threads.names == {1: "sh", 3: "ls"}
    assert images.pids == [1, 3]
    assert images.image(1).native.read(100, 0x1000, 2) == b"\x90\xc3"
    # The fork copied it, and the exec made an end of it.
    assert images.image(3).native.read(500, 0x1000, 2) == b"\x90\xc3"
    assert images.image(3).native.read(600, 0x1000, 2) == b""
