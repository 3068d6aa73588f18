"""JIT-compiled code: jitdump files and perf maps next to a recording or by option."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import re
import shutil
import struct
from pathlib import Path
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.cli.main import main
from rtit.errors import ImageError
from rtit.image import Images, Symbols
from rtit.image.jit_files import read_jitdump, read_perf_map
from rtit.packets import encode
from rtit.perfdata import Writer
from rtit.sideband.jit_code import JitCodeLoader
from rtit.trace import Trace
from support.limits import assert_peak_memory

PID = 77
AT = 0x7F00_0000_1000
FIRST, SECOND = bytes.fromhex("90 90 c3"), bytes.fromhex("6690 c3")
TICKS = 1


def header(flags: int = TICKS, pid: int = PID) -> bytes:
    """Linux, tools/perf/Documentation/jitdump-specification.txt: the file header."""
    return struct.pack("<4sIIIIIQQ", b"DTiJ", 1, 40, 62, 0, pid, 0, flags)


def load(time: int, address: int, code: bytes, name: str, index: int = 0) -> bytes:
    body = struct.pack("<IIQQQQ", PID, PID, address, address, len(code), index)
    body += name.encode() + b"\0" + code
    return struct.pack("<IIQ", 0, 16 + len(body), time) + body


def move(time: int, old: int, new: int, size: int) -> bytes:
    body = struct.pack("<IIQQQQQ", PID, PID, new, old, new, size, 0)
    return struct.pack("<IIQ", 1, 16 + len(body), time) + body


DUMP = header() + load(10, AT, FIRST, "first") + load(1_000, AT, SECOND, "second")


def function_bytes(end: int) -> bytes:
    """Return the code at AT up to its RET, which has no target."""
    begin = encode("TIP.PGE", ip_bytes=6, payload=AT) + encode("FUP", ip_bytes=6, payload=end)
    return begin + encode("TIP.PGD", ip_bytes=0)


def write_jit_recording(folder: Path) -> Path:
    """Write a recording that runs the same addresses twice, the second time with other code."""
    psb = encode("PSB") + encode("TSC", tsc=20) + b"\x99\x01" + encode("PSBEND")
    trace = psb + function_bytes(AT + 2) + encode("TSC", tsc=2_000) + function_bytes(AT + 2)
    data = folder / "perf.data"
    with Writer(data, config=0x2401, cpuid="GenuineIntel,6,94,3") as out:
        out.comm(PID, PID, 1, "maker", by_exec=True)
        out.mmap2(PID, PID, 2, AT & -0x1000, 0x4000, 0, 5, 0x22, 0, 0, 0, 0, "//anon")
        out.itrace_start(PID, PID, 3)
        out.auxtrace(PID, PID, trace, None, 3_000)
    return data


def ips(data: Path, **options: object) -> list[int]:
    with Trace(data, **options) as trace:  # type: ignore[arg-type]
        return [
            int(ip) for stream in trace.streams for part in stream.instructions() for ip in part.ip
        ]


def test_jit_code_applies_at_its_time(tmp_path: Path) -> None:
    data = write_jit_recording(tmp_path)
    assert ips(data) == []
    (tmp_path / f"jit-{PID}.dump").write_bytes(DUMP)
    with Trace(data) as trace:
        (stream,) = trace.streams
        assert [int(ip) for part in stream.instructions() for ip in part.ip] == [AT, AT + 1, AT]
        assert [str(trace.symbols.lookup(PID, time, AT)) for time in (20, 2_000)] == [
            "first",
            "second",
        ]
        assert trace.image_problems == []


def test_functions_at_one_address_are_counted_separately(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two functions were at one address; a profile of one binary has neither, and says so."""
    data = write_jit_recording(tmp_path)
    (tmp_path / f"jit-{PID}.dump").write_bytes(DUMP)
    assert main(["stat", "--json", str(data)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["missing"] == []
    names = {name.partition(" (")[0]: count for name, count in found["functions"].items()}
    assert names == {"first": 2, "second": 1}
    assert main(["profile", "--for", "callgrind", str(data)]) == 0
    said = capsys.readouterr()
    assert re.findall(r"^fn=.* (\w+)\n0x0 0 (\d+)$", said.out, re.MULTILINE) == [
        ("first", "2"),
        ("second", "1"),
    ]
    assert "missing" not in said.err
    assert main(["profile", "--for", "bolt", str(data)]) == 1
    assert "3 instructions ran in no file" in capsys.readouterr().err


def test_jitdump_files_are_found_by_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    data, dump = write_jit_recording(tmp_path), tmp_path / "there" / f"jit-{PID}.dump"
    dump.write_bytes(DUMP)
    for location in (dump, dump.parent):
        words = ["instructions", str(data), "--jit", str(location), "--fields", "sym"]
        assert main(words) == 0
        assert capsys.readouterr().out.split() == ["first", "first+0x1", "second"]
    assert main(["report", str(data), "--jit", str(tmp_path / "none")]) == 1
    assert "regular file named jit-PID.dump" in capsys.readouterr().err


def test_moved_jit_code_applies_at_its_new_address(tmp_path: Path) -> None:
    content = header() + load(10, AT + 0x100, FIRST, "first") + move(15, AT + 0x100, AT, 3)
    path = tmp_path / f"jit-{PID}.dump"
    path.write_bytes(content)
    found = read_jitdump(str(path))
    assert [(each.time, each.address, each.name) for each in found.functions_with_code] == [
        (10, AT + 0x100, "first"),
        (15, AT, "first"),
    ]


def test_jitdump_with_other_clock_has_the_code_of_the_end(tmp_path: Path) -> None:
    data = write_jit_recording(tmp_path)
    (tmp_path / f"jit-{PID}.dump").write_bytes(header(0) + DUMP[40:])
    with Trace(data) as trace:
        (problem,) = trace.image_problems
        assert "not TSC ticks" in problem.message
        (stream,) = trace.streams
        # each run of "second" ends at its second instruction
        assert [int(ip) for part in stream.instructions() for ip in part.ip] == [AT, AT]
        for time in (20, 2_000):
            assert str(trace.symbols.lookup(PID, time, AT)) == "second"


def test_perf_map_names_memory(tmp_path: Path) -> None:
    """A map names memory without known code; a jitdump takes precedence."""
    data = write_jit_recording(tmp_path)
    path = tmp_path / f"perf-{PID}.map"
    path.write_text(f"{AT:x} 10 of the map\nodd\n{AT + 0x20:x} 0 empty\n{AT + 0x40:x} 8 b\n")
    assert [row[2] for row in read_perf_map(str(path))] == ["of the map", "b"]
    with Trace(data) as trace:
        assert str(trace.symbols.lookup(PID, 5, AT + 4)) == "of the map+0x4"
        assert str(trace.symbols.lookup(PID, 5, AT + 0x41)) == "b+0x1"
    (tmp_path / f"jit-{PID}.dump").write_bytes(DUMP)
    with Trace(data) as trace:
        assert str(trace.symbols.lookup(PID, 20, AT + 1)) == "first+0x1"


def test_files_of_other_processes_are_not_read(tmp_path: Path) -> None:
    data = write_jit_recording(tmp_path)
    (tmp_path / "jit-78.dump").write_bytes(b"none")
    (tmp_path / "jit-077.dump.old").write_bytes(b"none")
    with Trace(data) as trace:
        assert trace.image_problems == []


def test_jit_pipe_is_ignored(tmp_path: Path) -> None:
    data = write_jit_recording(tmp_path)
    os.mkfifo(tmp_path / f"jit-{PID}.dump")
    os.mkfifo(tmp_path / f"perf-{PID}.map")
    assert ips(data) == []
    with pytest.raises(ImageError, match="neither a folder nor a regular file"):
        ips(data, jit=[tmp_path / f"jit-{PID}.dump"])


def test_corrupted_jitdump_gives_result_or_error(tmp_path: Path) -> None:
    data = write_jit_recording(tmp_path)
    path = tmp_path / f"jit-{PID}.dump"
    whole = [AT, AT + 1, AT]
    for size in range(0, len(DUMP), 3):
        path.write_bytes(DUMP[:size])
        with Trace(data) as trace:
            (stream,) = trace.streams
            found = [int(ip) for part in stream.instructions() for ip in part.ip]
            assert found in ([], [AT, AT + 1, AT, AT + 1], whole)
            # a file that ends after a record is complete
            assert trace.image_problems or size in (40, 40 + len(load(10, AT, FIRST, "first")))
    rng = random.Random(3)
    for _ in range(60):
        changed = bytearray(DUMP)
        for _ in range(rng.randrange(1, 5)):
            changed[rng.randrange(len(changed))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        path.write_bytes(changed)
        try:
            read_jitdump(str(path))
        except ImageError:
            continue
        ips(data)


def test_moved_functions_count_against_limit(tmp_path: Path) -> None:
    """Each move is another copy, which counts like code in a file."""
    data, size = write_jit_recording(tmp_path), 1 << 20
    moves = b"".join(move(15, AT + at * size, AT + (at + 1) * size, size) for at in range(600))
    (tmp_path / f"jit-{PID}.dump").write_bytes(header() + load(10, AT, bytes(size), "big") + moves)
    with Trace(data) as trace:
        expected = [str(each) for each in trace.image_problems]
    assert any("more than 536,870,912 bytes of JIT-compiled code" in each for each in expected)


def test_jitdump_descriptors_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dump_at_limit(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    path = tmp_path / f"jit-{PID}.dump"
    path.write_bytes(DUMP)
    monkeypatch.setattr(os, "dup", dump_at_limit)
    with pytest.raises(ImageError, match="Too many open files"):
        read_jitdump(str(path))


def test_open_jitdump_descriptors_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any number of dumps; another file of the same name is not used in their place."""
    monkeypatch.setattr("rtit.image.jit_files._OPEN", WeakSet())
    monkeypatch.setattr("rtit.image.jit_files._MAX_OPEN", 2)
    paths = [tmp_path / f"jit-{pid}.dump" for pid in range(20)]
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in paths:
        path.write_bytes(DUMP)
    dumps = [read_jitdump(str(path)) for path in paths]
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 2
    for dump in dumps:
        assert [each.code for each in dump.functions_with_code] == [FIRST, SECOND]
    (tmp_path / "other").write_bytes(DUMP)
    (tmp_path / "other").rename(paths[-1])
    paths[-2].unlink()
    assert dumps[-1].code_of_function(0) == dumps[-2].code_of_function(0) == b""
    del dumps, dump
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_absurd_jit_code_size_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / f"jit-{PID}.dump"
    with path.open("wb") as file:
        file.write(DUMP)
        file.truncate(10 << 30)
    found = read_jitdump(str(path))
    assert [each.code for each in found.functions_with_code] == [FIRST, SECOND]
    assert found.incomplete == f"bad size 0 of the record at {len(DUMP):#x}"
    path.rename(tmp_path / f"perf-{PID}.map")
    with pytest.raises(ImageError, match="names are too long"):
        list(read_perf_map(str(tmp_path / f"perf-{PID}.map")))


def test_dump_beyond_function_limit_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with more functions is ignored as a whole, so that its code does not replace later
    code.
    """
    data = write_jit_recording(tmp_path)
    dump, names = tmp_path / f"jit-{PID}.dump", tmp_path / f"perf-{PID}.map"
    dump.write_bytes(DUMP + load(2_000, AT, FIRST, "third"))
    names.write_text("".join(f"{AT + at:x} 1 f{at}\n" for at in range(3)))
    for most, expected in ((2, [" 2 functions"] * 2), (4, ["JIT-compiled functions"]), (6, [])):
        monkeypatch.setattr("rtit.image.jit_files.MAX_FUNCTIONS", most)
        monkeypatch.setattr("rtit.sideband.jit_code.MAX_FUNCTIONS", most)
        with Trace(data) as trace:
            problems = [each.message for each in trace.image_problems]
            pairs = zip(problems, expected, strict=True)
            assert all(part in message for message, part in pairs)
            count = sum(stream.counts().instructions for stream in trace.streams)
            assert bool(count) is (most > 2)
    monkeypatch.setattr("rtit.image.jit_files._MAX_RECORDS", 2)
    with pytest.raises(ImageError, match="more than 2 records"):
        read_jitdump(str(dump))


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 8192, 16])
def test_jit_functions_use_little_memory(tmp_path: Path, step: int) -> None:
    """50,000 functions at one address, adjacent, or far apart."""
    data, path = write_jit_recording(tmp_path), tmp_path / f"jit-{PID}.dump"
    made = (load(at, AT + at * step, b"\x90", f"f{at}") for at in range(50_000))
    path.write_bytes(header() + b"".join(made))
    with assert_peak_memory(60), Trace(data) as trace:
        assert str(trace.symbols.lookup(PID, 2_000, AT + 7 * step)) == f"f{7 if step else 2_000}"


def test_invalid_perf_map_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / f"perf-{PID}.map"
    path.write_bytes(
        b"# 10 10 f\n\n7f 10\n7f\n-7f 10 f\n7f 0 f\n7f -1 f\n8000000000000000 1 f\n"
        b"0x7f 0x10 first name \r\n \t80\t8 second\n90 8 \xff\n" + b"#\n" * (1 << 20) + b"a0 8 last"
    )
    assert list(read_perf_map(str(path))) == [
        (0x7F, 0x10, "first name "),
        (0x80, 8, "second"),
        (0x90, 8, "\N{REPLACEMENT CHARACTER}"),
        (0xA0, 8, "last"),
    ]


FUNCTIONS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=30
)


@given(functions=FUNCTIONS, far=st.booleans())
def test_last_jit_function_at_address_counts(
    functions: list[tuple[int, int, int]], far: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Random functions at random addresses and times."""
    folder = tmp_path_factory.mktemp("dumps")
    path = str(folder / f"jit-{PID}.dump")
    step = 700 if far else 1
    rows = [
        (time, AT + at * step, bytes([number]) * size)
        for number, (time, at, size) in enumerate(functions)
    ]
    loads = (load(time, at, code, f"f{code[0]}") for time, at, code in rows)
    Path(path).write_bytes(header() + b"".join(loads))
    images = Images()
    images.mmap(0, PID, PID, AT & -0x1000, 0x40000, 0, "//anon")
    jitted = JitCodeLoader(images, {path: path}, {PID})
    jitted.finish()
    symbols = Symbols(images)
    in_order = sorted(rows, key=lambda row: row[0])
    for now in {row[0] for row in rows}:
        there = [row for row in in_order if row[0] <= now]
        for address in {row[1] + location for row in rows for location in range(len(row[2]))}:
            last = [row for row in there if row[1] <= address < row[1] + len(row[2])]
            if last:
                code = images.image(PID).read(address, 1, time=now)
                assert code == last[-1][2][:1]
                found = symbols.lookup(PID, now, address)
                assert (found.name, found.offset) == (f"f{last[-1][2][0]}", address - last[-1][1])
    shutil.rmtree(folder)
