"""Recordings in the gdb that is installed."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import rtit
from live import RTIT, Recorder, ends, to_the_end
from programs.build import SOURCES, CannotBuildError, compiled
from rtit.capture import Request, start
from rtit.capture.ptrace import replay
from rtit.capture.store.extent import Extent
from rtit.cli.main import main
from rtit.errors import UnsupportedError
from rtit.gdb.debugger import find_gdb
from rtit.gdb.target import Target

RECORDED = re.compile(r"^Recorded (\d+) instructions in \d+ functions \((\d+) gaps\)", re.MULTILINE)
FRAME = re.compile(r"^#\d+ +(?:0x[0-9a-f]+ in )?(\S+) \(", re.MULTILINE)
HIT = re.compile(r"^Breakpoint 1, ", re.MULTILINE)

ProgramBuilder = Callable[[str], Path]


@dataclass(frozen=True)
class Said:
    """What one session of gdb gave."""

    status: int
    out: str
    err: str

    @property
    def recorded(self) -> tuple[int, int]:
        """Instructions and gaps, as `info record` counts them."""
        found = RECORDED.search(self.out)
        assert found is not None, self.out + self.err
        return int(found[1]), int(found[2])

    @property
    def frames(self) -> list[str]:
        """Functions of all backtraces, as they came."""
        return FRAME.findall(self.out)


def debugged(data: Path, *commands: str, options: tuple[str, ...] = (), path: str = "") -> Said:
    """`rtit gdb` with these commands of gdb."""
    words = [word for each in commands for word in ("--ex", each)]
    ended = subprocess.run(
        [*RTIT, "gdb", str(data), *options, "--gdb", "gdb -nx", "--batch", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={
            "PATH": path or "/usr/bin:/bin",
            "PYTHONPATH": str(Path(rtit.__file__).parent.parent),
            "HOME": str(data.parent),
        },
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return Said(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture(scope="module", autouse=True)
def _gdb() -> None:
    try:
        if not find_gdb().has_pt:
            pytest.skip("gdb was built without libipt")
    except UnsupportedError as error:
        pytest.skip(str(error))


def recorded(folder: Path, *argv: str | Path, backend: str = "auto", **more: object) -> Path:
    words = tuple(map(str, argv))
    request = Request(words, backend=backend, output=folder / "data", **more)  # type: ignore[arg-type]
    to_the_end(start(request))
    return folder / "data"


def of_truth(truth: Path) -> int:
    """How many instructions the one thread executed."""
    [(_, instructions, _)] = ends(truth).values()
    return instructions


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PIE that crashes in a shared object."""
    flags = ["-g", "-O1", "-fno-inline", "-fno-optimize-sibling-calls"]
    try:
        part = compiled(
            "shared_part",
            [str(SOURCES / "shared_part.c")],
            language="c",
            flags=[*flags, "-fPIC", "-shared"],
        )
        program = compiled(
            "shared_main",
            [str(SOURCES / "shared_main.c")],
            language="c",
            flags=[*flags, "-fPIE", "-pie", "-Wl,-z,now"],
            libraries=[str(part)],
        )
    except CannotBuildError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("shared")
    return recorded(folder, program, truth=folder / "truth")


@pytest.mark.parametrize("form", ["pt", "bts"])
@pytest.mark.parametrize("backend", ["auto", "ptrace"])
def test_count_and_function_of_a_crash(
    program: ProgramBuilder, tmp_path: Path, backend: str, form: str
) -> None:
    exe = program("crash_late")
    truth = tmp_path / "truth"
    data = recorded(tmp_path, exe, backend=backend, truth=truth)
    said = debugged(data, "info record", "bt", options=("--form", form))
    assert said.recorded == (of_truth(truth), 0)
    assert said.frames == ["main"]
    assert re.search(r"crash_late.c:\d+\n\d+\s+\*nowhere = value;", said.out)
    whole = f"all {of_truth(truth):,} instructions, to SIGSEGV at address 0x0"
    assert whole in said.err
    assert said.status == 0


def test_a_recording_that_ends_anywhere(program: ProgramBuilder, tmp_path: Path) -> None:
    """It stands at what a longer recording executed next, also behind calls, returns and jumps."""
    exe, most = program("recursion"), 40

    def until(count: int) -> tuple[list[int], int | None]:
        """The IPs that were executed, and where it stands."""
        data = recorded(tmp_path, exe, backend="ptrace", start_at="main", stop_at=f"+{count}")
        with rtit.Trace(data) as trace:
            target = Target(trace, last=1000, tell=lambda _: None)
            [stream] = trace.streams
            ips = [ip for batch in stream.instructions() for ip in batch.ip.tolist()]
            return ips, target.pc(target.tid)

    whole, _ = until(most)
    elsewhere = 0
    for count in range(10, 30):
        own, pc = until(count)
        assert len(own) == count
        assert pc is not None
        assert pc - own[0] == whole[count] - whole[0]
        elsewhere += not 0 < whole[count] - whole[count - 1] < 16
    assert elsewhere >= 3


def test_a_recording_that_stops_at_a_size(program: ProgramBuilder, tmp_path: Path) -> None:
    """It stands at what a longer recording executed next; the crash came later."""
    exe = program("crash_late")

    def executed(size: int | None = None) -> tuple[list[int], int | None, int]:
        event = "intel_pt/cyc,noretcomp,psb_period=0/u"
        data = recorded(tmp_path, exe, event=event, extent=Extent(max_size=size))
        with rtit.Trace(data) as trace:
            target = Target(trace, last=1000, tell=lambda _: None)
            ips = [ip for batch in trace.streams[0].instructions() for ip in batch.ip.tolist()]
            return ips, target.pc(target.tid), target.signal(target.tid)

    whole, _, signalled = executed()
    assert signalled == signal.SIGSEGV
    turned = 0
    for size in (1 << 14, 17 << 10):
        own, pc, signalled = executed(size)
        count = len(own)
        assert 100 < count < len(whole)
        assert signalled == signal.SIGTRAP
        assert pc is not None
        assert pc - own[0] == whole[count] - whole[0]
        turned += not 0 < whole[count] - whole[count - 1] < 16
    assert turned


@pytest.mark.parametrize("backend", ["auto", "ptrace"])
@pytest.mark.parametrize("stop", ["+500", "some"])
def test_a_crash_behind_the_end_of_the_trace(
    program: ProgramBuilder, tmp_path: Path, stop: str, backend: str
) -> None:
    """It stands where tracing ended: what led from there to the crash is not known."""
    data = recorded(tmp_path, program("crash_late"), stop_at=stop, backend=backend)
    said = debugged(data, "p $_siginfo", "info record", "bt", "info line")
    assert "came later, and what led there was not traced" in said.err
    assert ", to SIGSEGV" not in said.err
    with rtit.Trace(data) as trace:
        [ended] = trace.endings
        assert ended.ending.fault is not None
        target = Target(trace, last=1000, tell=lambda _: None)
        assert target.pc(target.tid) != ended.ending.fault.ip
        assert target.signal(target.tid) == 5
        instructions = trace.streams[0].counts().instructions
    assert said.recorded == (instructions, 0)
    assert "*nowhere = value;" not in said.out
    assert said.status == 0


def test_a_gap_in_another_thread(program: ProgramBuilder, tmp_path: Path) -> None:
    """The exit code tells of all threads that were looked at."""
    data = recorded(tmp_path, program("crash_thread"), event="intel_pt/psb_period=0/u")
    assert debugged(data, "thread apply all -s bt").status == 0
    with rtit.Trace(data) as trace:
        [ended] = trace.endings
        [other] = [each for each in trace.streams if each.tid != ended.tid]
        piece = other.source.pieces[0]  # type: ignore[attr-defined]
    broken = bytearray(data.read_bytes())
    place = piece.file_offset + piece.size // 2
    broken[place : place + 8] = bytes.fromhex("02ff02ff02ff02ff")  # no packets
    data.write_bytes(broken)
    assert debugged(data, "thread apply all -s bt").status == 3


@pytest.mark.parametrize("command", ["", "''", "'"])
def test_no_gdb_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gdb", "no such file", "--gdb", command]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"rtit gdb: --gdb {command!r}")
    assert said.count("\n") == 1


def test_a_breakpoint_is_hit_backwards(program: ProgramBuilder, tmp_path: Path) -> None:
    """main calls `some` fifty times, and each calls through a pointer thirty times."""
    data = recorded(tmp_path, program("crash_late"))
    back = ["reverse-continue"] * 52
    said = debugged(data, "break some", *back, "bt")
    assert len(HIT.findall(said.out)) == 50
    assert "No more reverse-execution history" in said.out
    said = debugged(data, "break some", "reverse-continue", "bt")
    assert said.frames == ["some", "main"]
    said = debugged(data, "tbreak some", "reverse-continue", "delete", "reverse-finish", "bt")
    assert said.frames == ["main"]
    assert "value = some(value);" in said.out


def test_a_pie_with_a_shared_object(shared: Path) -> None:
    said = debugged(shared, "info record", "bt", "info sharedlibrary", "up 4", "info line")
    assert said.recorded == (of_truth(shared.with_name("truth")), 0)
    # As the calls were, with whoever called main behind it.
    assert said.frames[:5] == ["deeper"] * 4 + ["main"]
    assert "return (sum + deeper((int *)16, argc + 2)) & 7;" in said.out
    assert re.search(r"Yes .*/shared_part-", said.out)
    said = debugged(shared, "break scale", *["reverse-continue"] * 10, "bt")
    assert len(HIT.findall(said.out)) == 10
    assert [each for each in said.frames if "@plt" not in each][:3] == ["scale", "step", "main"]
    said = debugged(shared, "reverse-stepi", "bt")
    assert said.frames[:4] == ["deeper"] * 4


def names_of_callers(data: Path) -> list[str]:
    """Of the thread that crashed."""
    with rtit.Trace(data) as trace:
        target = Target(trace, last=1 << 40, tell=lambda _: None)
        found = target.callers(target.tid)
        return [trace.symbols.lookup(target.tid, 1 << 62, each).name for each in found]


def test_calls_that_have_not_returned(shared: Path) -> None:
    """And no other: the functions of the C library that called main have names of their own."""
    names = names_of_callers(shared)
    assert names[:4] == ["deeper", "deeper", "deeper", "main"]
    assert names[-1] == "_start"
    assert all("start" in each for each in names[4:])


def test_what_is_known_and_what_is_not(shared: Path) -> None:
    said = debugged(shared, "p $rax", "p/x $pc", "x/2i deeper", "p *(char *)$sp", "set var $pc=1")
    assert "$1 = <unavailable>" in said.out
    pc = re.search(r"^\$2 = 0x([0-9a-f]+)$", said.out, re.MULTILINE)
    assert pc is not None
    with rtit.Trace(shared) as trace:
        [ended] = trace.endings
        assert ended.ending.fault is not None
        assert int(pc[1], 16) == ended.ending.fault.ip
    assert "<deeper>:" in said.out
    # What it was is nowhere; and nothing can be changed.
    assert "$3" not in said.out
    assert said.err.count("\n") >= 2


def test_functions_in_their_order(shared: Path) -> None:
    said = debugged(shared, "record function-call-history /c")
    named = re.findall(r"^\d+\t +(\w+)$", said.out, re.MULTILINE)
    assert named[-4:] == ["deeper"] * 4, said.out


def test_several_threads(program: ProgramBuilder, tmp_path: Path) -> None:
    """The second one crashes, while the first waits for it."""
    data = recorded(tmp_path, program("crash_thread"), truth=tmp_path / "truth")
    said = debugged(data, "bt", "info record", "info threads", "thread apply all -s bt")
    assert said.frames[0] == "fail"
    with rtit.Trace(data) as trace:
        [ended] = trace.endings
        assert len(trace.streams) == 2
    counts = ends(tmp_path / "truth")
    assert said.recorded == (counts[ended.tid][1], 0)
    listed = re.findall(r"^[* ] +\d+ +Thread (\d+) ", said.out, re.MULTILINE)
    assert set(listed) == set(map(str, counts))
    assert "main" in said.frames
    [other] = counts.keys() - {ended.tid}
    said = debugged(data, "info record", "bt", options=("--thread", str(other)))
    assert said.recorded == (counts[other][1], 0)
    assert "main" in said.frames
    assert debugged(data, options=("--thread", "1")).status == 2


@pytest.mark.parametrize("cpus", [1, 2])
def test_threads_that_share_cpus(
    program: ProgramBuilder, record: Recorder, tmp_path: Path, cpus: int
) -> None:
    """No packets are a thread's own: gdb gets what was decoded."""
    live = record([program("threads")])
    data = tmp_path / "data"
    replay(live.log, data, cpus=cpus)
    for tid, (_, instructions, _) in ends(live.truth).items():
        said = debugged(data, "info record", options=("--thread", str(tid)))
        assert said.recorded == (instructions, 0)
        assert f"all {instructions:,} instructions, as blocks" in said.err


def test_a_recorder_that_was_killed(program: ProgramBuilder, tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [*RTIT, "record", "--backend", "ptrace", "-q", "-o", str(data)]
    package = str(Path(rtit.__file__).parent.parent)
    with subprocess.Popen(
        [*command, "--", program("endless")],
        stdout=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": package},
    ) as recorder:
        while not (data.exists() and data.stat().st_size > 12000):
            assert recorder.poll() is None
        recorder.send_signal(signal.SIGKILL)
    with rtit.Trace(data) as trace:
        assert trace.incomplete
        instructions = trace.streams[0].counts().instructions
    said = debugged(data, "info record", "bt")
    assert said.status == 3
    assert "is incomplete" in said.err
    count, gaps = said.recorded
    # Where the packets end libipt may go on to the branch that needs the next.
    assert gaps == 0
    assert abs(instructions - count) < 10
    assert set(said.frames) <= {"step", "main", "_start", "??"}


def test_no_symbols(program: ProgramBuilder, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped"
    shutil.copy(program("crash_late"), stripped)
    strip = shutil.which("strip")
    if strip is None:
        pytest.skip("strip is not installed")
    subprocess.run([strip, str(stripped)], check=True)
    data = recorded(tmp_path, stripped, truth=tmp_path / "truth")
    said = debugged(data, "info record", "bt", "reverse-stepi", "x/i $pc")
    assert said.recorded == (of_truth(tmp_path / "truth"), 0)
    assert set(said.frames) == {"??"}
    assert re.search(r"^=> 0x[0-9a-f]+:\tmov ", said.out, re.MULTILINE)


def test_a_program_that_was_built_again(program: ProgramBuilder, tmp_path: Path) -> None:
    exe = tmp_path / "exe"
    shutil.copy(program("crash_late"), exe)
    data = recorded(tmp_path, exe)
    exe.write_bytes(exe.read_bytes()[:5000])
    said = debugged(data, "bt")
    assert said.status == 3
    assert str(exe) in said.err


def test_behind_an_exec(program: ProgramBuilder, tmp_path: Path) -> None:
    """What the program before it did has other code at the same addresses."""
    exe = program("crash_late")
    truth = tmp_path / "truth"
    recorded(tmp_path, exe, truth=truth)
    (tmp_path / "again").mkdir()
    data = recorded(tmp_path / "again", exe, "and", "again")
    said = debugged(data, "info record", "bt")
    assert said.recorded == (of_truth(truth), 0)
    assert said.frames == ["main"]


@pytest.mark.parametrize("form", ["pt", "bts"])
def test_a_gap(program: ProgramBuilder, tmp_path: Path, form: str) -> None:
    exe, truth = program("crash_late"), tmp_path / "truth"
    data = recorded(tmp_path, exe, event="intel_pt/psb_period=0/u", truth=truth)
    with rtit.Trace(data) as trace:
        pieces = trace.streams[0].source.pieces  # type: ignore[attr-defined]
        points = [point.offset for batch in trace.streams[0].sync_points() for point in batch]
        wrong = points[2] - 100
        [piece] = [each for each in pieces if 0 <= wrong - each.aux_offset < each.size - 8]
        place = piece.file_offset + wrong - piece.aux_offset
    broken = bytearray(data.read_bytes())
    broken[place : place + 8] = bytes.fromhex("02ff02ff02ff02ff")  # no packets
    data.write_bytes(broken)
    said = debugged(data, "info record", "bt", options=("--form", form))
    count, gaps = said.recorded
    assert gaps >= 1
    assert 0 < count < of_truth(truth)
    assert said.frames == ["main"]
    assert said.status == 3
    assert "something is missing in 1 place\n" in said.err
    # main was called before it: nothing is known of that any more.
    assert names_of_callers(data) == []


@pytest.mark.parametrize("form", ["pt", "bts"])
def test_the_snapshot_before_a_crash(program: ProgramBuilder, tmp_path: Path, form: str) -> None:
    extent = Extent(snapshot=4096)
    data = recorded(tmp_path, program("crash_late"), event="intel_pt/psb_period=0/u", extent=extent)
    with rtit.Trace(data) as trace:
        assert trace.is_snapshot
        instructions = trace.streams[0].counts().instructions
    said = debugged(data, "info record", "bt", "reverse-stepi", options=("--form", form))
    assert said.recorded[0] == instructions
    assert said.frames == ["main"]


@pytest.mark.parametrize("form", ["pt", "bts"])
def test_the_end_alone(program: ProgramBuilder, tmp_path: Path, form: str) -> None:
    data = recorded(
        tmp_path, program("crash_late"), event="intel_pt/psb_period=0/u", truth=tmp_path / "truth"
    )
    whole = of_truth(tmp_path / "truth")
    said = debugged(data, "info record", "bt", options=("--form", form, "--last", "2000"))
    count, gaps = said.recorded
    assert gaps == 0
    assert 2000 <= count < whole / 2
    assert f"the last {count:,} of {whole:,} instructions" in said.err
    assert said.frames == ["main"]


def test_a_gdb_without_libipt(shared: Path, tmp_path: Path) -> None:
    real = shutil.which("gdb")
    fake = tmp_path / "gdb"
    fake.write_text(
        '#!/bin/sh\n[ "$2" = --configuration ] && echo "--with-expat --without-intel-pt" && exit\n'
        f'exec {real} "$@"\n'
    )
    fake.chmod(0o755)
    said = debugged(shared, "info record", path=f"{tmp_path}:/usr/bin:/bin")
    assert "built without libipt: it gets blocks instead of packets" in said.err
    assert "Recording format: Branch Trace Store." in said.out
    assert said.recorded == (of_truth(shared.with_name("truth")), 0)
    said = debugged(shared, options=("--form", "pt"), path=f"{tmp_path}:/usr/bin:/bin")
    assert said.status == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_it_ends_gdb(shared: Path, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "temporary").mkdir()
    with subprocess.Popen(
        [*RTIT, "gdb", str(shared), "--gdb", "gdb -nx", "--ex", "shell echo ready"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(Path(rtit.__file__).parent.parent),
            "HOME": str(tmp_path),
            "TMPDIR": str(tmp_path / "temporary"),
        },
    ) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if line == b"ready\n":
                break
        server.send_signal(number)
        # gdb has this pipe, too: it closes when both are gone.
        server.stdout.read()
        assert server.wait(60) == 128 + number
    assert not [*(tmp_path / "temporary").iterdir()]


def test_one_that_comes_over_the_network(shared: Path) -> None:
    gdb = find_gdb().words[0]
    with subprocess.Popen(
        [*RTIT, "gdb", "--listen", "0", str(shared)], stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        place = ""
        for line in server.stderr:
            if "target remote" in line:
                place = line.split()[-1]
                break
        assert place.startswith("127.0.0.1:")
        ended = subprocess.run(
            [gdb, "-nx", "-batch", "-ex", f"target remote {place}", "-ex", "info record"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert server.wait(60) == 0
    found = RECORDED.search(ended.stdout)
    assert found is not None, ended.stdout + ended.stderr
    assert int(found[1]) == of_truth(shared.with_name("truth"))
