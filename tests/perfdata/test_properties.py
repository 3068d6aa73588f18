"""Property tests: written files are read back, and no bytes crash the reader."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.errors import PerfDataError, UnsupportedError
from rtit.perfdata import (
    AuxBuffer,
    ExitStatus,
    Fault,
    PerfData,
    TimeConversion,
    Writer,
    format_config,
    parse_config,
    records,
)
from rtit.perfdata.aux import IntelPtInfo
from rtit.perfdata.features import format_facts, parse_facts
from rtit.perfdata.records import Cursor
from support.properties import examples

U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
PID = st.integers(-1, (1 << 31) - 1)
NAME = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
CODE = st.binary(min_size=1, max_size=100)

ENDINGS = st.builds(
    ExitStatus,
    st.integers(0, 0xFFFF),
    st.booleans(),
    st.booleans(),
    st.none() | st.builds(Fault, U64, st.integers(-(2**31), 2**31 - 1), U64),
)

Step = tuple[str, tuple[Any, ...]]

STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("comm"), st.tuples(PID, PID, U64, NAME, st.booleans())),
    st.tuples(
        st.just("mmap2"),
        st.tuples(
            *(PID, PID, U64, U64, U64, U64, U32, U32, U32, U32, U64, U64, NAME),
            st.one_of(st.none(), st.binary(min_size=1, max_size=20)),
        ),
    ),
    st.tuples(st.just("fork"), st.tuples(PID, PID, PID, PID, U64)),
    st.tuples(st.just("exit"), st.tuples(PID, PID, PID, PID, U64, st.none() | ENDINGS)),
    st.tuples(st.just("itrace_start"), st.tuples(PID, PID, U64)),
    st.tuples(st.just("aux"), st.tuples(PID, PID, U64, U64, U64, U64)),
    st.tuples(
        st.just("auxtrace"),
        st.tuples(PID, PID, CODE, st.one_of(st.none(), U64), st.integers(1, (1 << 64) - 1)),
    ),
    st.tuples(st.just("text_poke"), st.tuples(PID, PID, U64, U64, CODE)),
)


def writer_call(record: records.Record) -> Step | None:
    """Return the Writer call that writes a record."""
    who = record.sample_id
    match record:
        case records.Comm():
            assert who == records.SampleId(record.pid, record.tid, record.time, 2)
            arguments = (record.pid, record.tid, record.time, record.comm, record.by_exec)
            return "comm", arguments
        case records.Mmap2():
            position = (record.address, record.length, record.pgoff, record.prot, record.flags)
            inode = record.inode or (None,) * 4
            rest = (*position, *inode, record.path, record.build_id)
            return "mmap2", (record.pid, record.tid, record.time, *rest)
        case records.Fork():
            thread = (record.pid, record.ppid, record.tid, record.ptid, record.clock)
            return "fork", thread
        case records.Exit():
            thread = (record.pid, record.ppid, record.tid, record.ptid, record.clock)
            return "exit", (*thread, record.exit_status)
        case records.ItraceStart():
            return "itrace_start", (record.pid, record.tid, record.time)
        case records.Aux():
            assert who is not None
            stretch = (record.aux_offset, record.length, record.flags)
            return "aux", (who.pid, who.tid, who.time, *stretch)
        case records.TextPoke():
            assert who is not None
            return "text_poke", (who.pid, who.tid, who.time, record.address, record.new)
        case _:
            return None


def expected(step: Step) -> Step:
    """Return the record that is read back; a build id replaces device and inode."""
    name, arguments = step
    if name == "mmap2" and arguments[-1] is not None:
        arguments = (*arguments[:8], None, None, None, None, *arguments[12:])
    return name, arguments


@pytest.fixture(scope="module")
def folder() -> Any:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@given(steps=st.lists(STEPS, max_size=12), close=st.booleans())
def test_written_records_round_trip(folder: Path, steps: list[Step], close: bool) -> None:
    path = folder / "perf.data"
    out = Writer(path, config=1, cpuid="")
    for name, arguments in steps:
        getattr(out, name)(*arguments)
    out.flush()
    if close:
        out.close()
    with PerfData(path) as file:
        found = [writer_call(record) for record in file.records()]
        queues = file.auxtrace_buffers()
        assert (file.incomplete is None) == close
    assert [step for step in found if step] == [expected(s) for s in steps if s[0] != "auxtrace"]
    streams: dict[int, list[tuple[bytes, int]]] = {}
    for tid, _, data, _, reference in (a for name, a in steps if name == "auxtrace"):
        streams.setdefault(tid, []).append((data + bytes(-len(data) % 8), reference))
    assert {AuxBuffer(-1, tid): pieces for tid, pieces in streams.items()} == {
        queue: [(bytes(piece.data), piece.reference) for piece in pieces]
        for queue, pieces in queues.items()
    }


def small_file(folder: Path) -> bytes:
    path = folder / "small"
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3", cmdline=["rtit"]) as out:
        out.comm(7, 7, 1, "name")
        out.mmap2(7, 7, 2, 0x401000, 0x1000, 0, 5, 2, 8, 1, 4711, 0, "/bin/true")
        out.auxtrace(7, 7, bytes(64), None, 1)
        out.text_poke(7, 7, 3, 0x7000, bytes(16))
        out.close(build_ids={"/bin/true": bytes(20)})
    return path.read_bytes()


@contextmanager
def only_two_errors() -> Iterator[None]:
    with suppress(UnsupportedError):
        try:
            yield
        except PerfDataError as error:
            if error.offset is None:
                raise


def read_everything(path: Path) -> None:
    """Read all parts of a file; only the two documented errors may occur."""
    questions: list[Callable[[PerfData], object]] = [
        lambda file: list(file.records()),
        lambda file: [bytes(p.data[:1]) for q in file.auxtrace_buffers().values() for p in q],
        lambda file: (file.intel_pt, file.time_conversion, file.features),
        lambda file: (file.hostname, file.arch, file.cpuid, file.version, file.release),
        lambda file: (file.cpu_description, file.facts),
        lambda file: file.build_ids,
        lambda file: file.command_line,
        lambda file: file.pmus,
    ]
    with only_two_errors(), PerfData(path) as file:
        for ask in questions:
            with only_two_errors():
                ask(file)


@examples(400)
@given(data=st.data())
def test_flipped_bytes_give_result_or_error(folder: Path, data: st.DataObject) -> None:
    content = bytearray(small_file(folder))
    position = st.integers(0, len(content) - 1)
    for at, value in data.draw(st.lists(st.tuples(position, st.integers(0, 255)), max_size=6)):
        content[at] = value
    length = data.draw(st.one_of(st.just(len(content)), position))
    path = folder / "flipped"
    path.write_bytes(content[:length])
    read_everything(path)


@examples(200)
@given(data=st.data())
def test_arbitrary_words_give_result_or_error(folder: Path, data: st.DataObject) -> None:
    """Sizes and offsets at their extremes, where sums wrap and products grow."""
    content = bytearray(small_file(folder))
    word = st.integers(0, len(content) // 8 - 1)
    value = st.one_of(U64, st.sampled_from([0, 1, 7, 8, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1]))
    for at, number in data.draw(st.lists(st.tuples(word, value), min_size=1, max_size=4)):
        struct.pack_into("<Q", content, 8 * at, number)
    path = folder / "words"
    path.write_bytes(content)
    read_everything(path)


@given(content=st.binary(max_size=400), piped=st.booleans())
def test_arbitrary_bytes_give_result_or_error(folder: Path, content: bytes, piped: bool) -> None:
    path = folder / "any"
    path.write_bytes(b"PERFILE2" + (b"\x10" + bytes(7) if piped else b"") + content)
    read_everything(path)


@given(config=U64)
def test_config_terms_round_trip(config: int) -> None:
    assert parse_config(format_config(config)) == config


@given(
    clock=st.builds(TimeConversion, st.integers(0, 63), st.integers(1, (1 << 32) - 1), U64),
    tsc=U64,
    step=st.integers(0, 1 << 40),
)
def test_clock_is_monotonic_and_invertible(clock: TimeConversion, tsc: int, step: int) -> None:
    """In one period of the clock ns never decrease with ticks, and ns convert to ticks and back."""
    elapsed = tsc * clock.mult >> clock.shift
    later = (tsc + step) * clock.mult >> clock.shift
    if later >= 1 << 64:
        return
    zero = clock.zero
    assert (clock.to_nanoseconds(tsc) - zero) % (1 << 64) == elapsed
    assert (clock.to_nanoseconds(tsc + step) - zero) % (1 << 64) >= elapsed
    tick = clock.to_tsc(clock.to_nanoseconds(tsc))
    if elapsed << clock.shift < clock.mult << 64:
        assert tick <= tsc
        assert 0 <= elapsed - (tick * clock.mult >> clock.shift) <= (clock.mult >> clock.shift) + 1


INFO = st.builds(
    IntelPtInfo,
    *([U64] * 16),
    st.one_of(st.none(), NAME.filter(bool)),
    U64,
)


@given(info=INFO)
def test_auxtrace_info_round_trips(info: IntelPtInfo) -> None:
    data = info.encode()
    assert len(data) % 8 == 0
    assert IntelPtInfo.decode(Cursor(memoryview(data), 0, "file", "AUXTRACE_INFO")) == info


WORD = st.text(st.characters(codec="ascii", exclude_characters="=;\0\n"), max_size=20).map(
    str.strip
)


@given(facts=st.dictionaries(WORD.filter(bool), WORD))
def test_facts_round_trip(facts: dict[str, str]) -> None:
    assert parse_facts(format_facts(facts)) == facts
