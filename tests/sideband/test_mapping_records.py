"""Records applied to the memory of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.image import Images
from rtit.perfdata import records as perf
from rtit.perfdata.records import Misc, Record, SampleId
from rtit.sideband.mapping_records import apply_mapping_record

PAGE = 4096
DATA_MAPPING = 1 << 13


@pytest.fixture
def raw(tmp_path: Path) -> str:
    path = tmp_path / "raw"
    path.write_bytes(b"\1" * PAGE)
    return str(path)


def mmap(path: str, misc: int = Misc.USER) -> perf.Mmap:
    return perf.Mmap(0, 1, misc, 0, None, 7, 8, 0x1000, PAGE, 0, path)


def mmap2(path: str, prot: int) -> perf.Mmap2:
    return perf.Mmap2(0, 10, Misc.USER, 0, None, 7, 8, 0x1000, PAGE, 0, bytes(24), prot, 2, path)


def code(*records: Record, pid: int = 7) -> bytes:
    images = Images()
    for time, record in enumerate(records, 1):
        apply_mapping_record(images, time, record)
    return images.image(pid).native.read(len(records), 0x1000, 2)


def test_only_executable_mappings_count(raw: str) -> None:
    assert code(mmap(raw)) == b"\1\1"
    assert code(mmap(raw, Misc.USER | DATA_MAPPING)) == b""
    assert code(mmap2(raw, prot=5)) == b"\1\1"
    assert code(mmap2(raw, prot=3)) == b""


def test_exec_ends_all_mappings(raw: str) -> None:
    new = perf.Comm(0, 3, Misc.USER | Misc.COMM_EXEC, 0, None, 7, 7, "new")
    renamed = perf.Comm(0, 3, Misc.USER, 0, None, 7, 7, "renamed")
    assert code(mmap(raw), new) == b""
    assert code(mmap(raw), renamed) == b"\1\1"


def test_text_poke_applies_to_its_process(raw: str) -> None:
    def poke(owner: SampleId | None) -> perf.TextPoke:
        poke = perf.TextPoke(0, 20, Misc.USER, 0, owner, 0x1001, 1, 1, b"\1\xc3")
        assert (poke.old, poke.new) == (b"\1", b"\xc3")
        return poke

    assert code(mmap(raw), poke(SampleId(pid=7))) == b"\1\xc3"
    assert code(mmap(raw), poke(SampleId(pid=9))) == b"\1\1"
    assert code(mmap(raw), poke(SampleId())) == b"\1\1"
    assert code(mmap(raw), poke(None)) == b"\1\1"


def test_record_with_pid_and_tid_assigns_thread(raw: str) -> None:
    started = perf.ItraceStart(0, 12, 0, 0, None, 7, 11)
    assert code(mmap(raw), started, pid=11) == b"\1\1"
    assert code(mmap(raw), pid=8) == b"\1\1"
    assert code(mmap(raw), pid=11) == b""
