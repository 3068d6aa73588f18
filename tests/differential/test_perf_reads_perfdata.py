"""Stock perf reads files of rtit's writer: hand-made packets of a hand-made program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from rtit.perfdata import ExitStatus, Fault, PerfData, TimeConversion, Writer

PERF = shutil.which("perf")
GCC = shutil.which("gcc")
pytestmark = [
    pytest.mark.skipif(PERF is None, reason="needs stock perf"),
    pytest.mark.skipif(GCC is None, reason="needs gcc"),
]

SOURCE = """
        .globl _start
_start: mov $3, %ecx     # 401000, 5 bytes
1:      dec %ecx         # 401005, 2
        jnz 1b           # 401007, 2
        call f           # 401009, 5
        mov $60, %eax    # 40100e, 5
        xor %edi, %edi   # 401013, 2
        syscall          # 401015, 2
f:      ret              # 401017, 1
"""
LOOP = ["401005", "401007"]
PATH = ["401000", *LOOP, *LOOP, *LOOP, "401009", "401017", "40100e", "401013", "401015"]
TSC = 1_000_000_000
PACKETS = bytes.fromhex(
    "0282" * 8  # PSB
    + "19 00CA9A3B000000"  # TSC 1_000_000_000
    + "0273 4078 00 0000"  # TMA: crystal 25_000_000 = 17D7840H, FC 0
    + "0203 0A 00"  # CBR 10
    + "0223"  # PSBEND
    + "9901"  # MODE.Exec: 64 bit
    + "71 001040000000"  # TIP.PGE 401000H
    + "3A"  # TNT: taken, taken, not taken; the return compressed to taken
    + "01"  # TIP.PGD: the system call
)
MNEMONICS = ["PSB", "TSC", "TMA", "CBR", "PSBEND", "MODE.Exec", "TIP.PGE", "TNT", "TIP.PGD"]
PID = 4242

PerfRunner = Callable[..., str]


@pytest.fixture
def perf(tmp_path: Path) -> PerfRunner:
    """Runs `perf script` on a file; the test fails if perf reports an error."""

    def run(path: Path, *options: str) -> str:
        environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C"}
        done = subprocess.run(
            [PERF or "perf", "script", "-i", str(path), *options],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "tiny.s").write_text(SOURCE)
    options = ["-nostdlib", "-static", "-no-pie", "-Wl,-Ttext=0x401000", "-Wl,--build-id=sha1"]
    subprocess.run(
        [GCC or "gcc", *options, "-o", "tiny", "tiny.s"], cwd=folder, check=True, timeout=300
    )
    return folder / "tiny"


def open_writer(path: Path, **options: object) -> Writer:
    return Writer(
        path,
        config=0x2601,  # pt, mtc, tsc, branch
        cpuid="GenuineIntel,6,94,3",
        cmdline=["rtit", "record", "--", "./tiny"],
        facts={"profile": "skylake", "time": "modelled"},
        **options,  # type: ignore[arg-type]
    )


def write_program_start(out: Writer, program: Path, build_id: bytes | None = None) -> int:
    """Write the sideband of a program start; return the time, in ns, just before its trace."""
    time = out.time.to_nanoseconds(TSC) - 1000
    out.comm(PID, PID, time, "tiny", by_exec=True)
    mapping = (0x401000, 0x1000, 0x1000, 5, 2, 8, 1, 4711, 0)
    out.mmap2(PID, PID, time + 1, *mapping, str(program), build_id)
    out.itrace_start(PID, PID, time + 2)
    return time + 3


def write_packets(out: Writer, tid: int = PID) -> None:
    out.auxtrace(tid, PID, PACKETS, None, TSC + 5000)
    out.aux(PID, tid, out.time.to_nanoseconds(TSC + 5000), 0, len(PACKETS))


@pytest.fixture
def recording(tmp_path: Path, program: Path) -> Iterator[Writer]:
    """A writer with the trace of one thread; the file is `perf.data` in the test's folder."""
    with open_writer(tmp_path / "perf.data") as out:
        write_program_start(out, program)
        write_packets(out)
        yield out


def addresses(output: str) -> list[str]:
    return output.split()


def test_perf_decodes_the_path(tmp_path: Path, recording: Writer, perf: PerfRunner) -> None:
    recording.exit(PID, PID, PID, PID, TSC + 6000)
    recording.close()
    path = tmp_path / "perf.data"
    assert addresses(perf(path, "--itrace=i0ns", "-F", "ip")) == PATH
    assert perf(path, "--itrace=e") == ""
    branches = perf(path, "--itrace=b", "-F", "ip,addr")
    assert re.findall(r"(\w+) => +(\w+)", branches) == [
        *(("0", "401000"), ("401007", "401005"), ("401007", "401005")),
        *(("401009", "401017"), ("401017", "40100e"), ("401015", "0")),
    ]


def test_perf_ignores_rtit_data_in_exit_records(
    tmp_path: Path, recording: Writer, perf: PerfRunner
) -> None:
    """rtit stores the ending and the instruction count in EXIT; perf finds the time after
    them.
    """
    ending = ExitStatus(11, of_process=True, took_signal=True, fault=Fault(0x401017, 1, 0xDEAD0010))
    recording.exit(PID, PID, PID + 1, PID, TSC + 6000, instructions=7)
    recording.exit(PID, PID, PID, PID, TSC + 7000, ending, 2**64 - 1)
    recording.close()
    path = tmp_path / "perf.data"
    assert addresses(perf(path, "--itrace=i0ns", "-F", "ip")) == PATH
    shown = perf(path, "--show-task-events", "--itrace=e", "--ns", "-F", "tid,time,event")
    found = re.findall(r"(\d+\.\d+):.*PERF_RECORD_EXIT\((\d+):(\d+)\)", shown)
    assert found == [
        ("1.000006000", str(PID), str(PID + 1)),
        ("1.000007000", str(PID), str(PID)),
    ]


def test_perf_dumps_the_packets(tmp_path: Path, recording: Writer, perf: PerfRunner) -> None:
    recording.close()
    dump = perf(tmp_path / "perf.data", "-D")
    names = re.findall(r"^\.\s+[0-9a-f]{8}: (?: [0-9a-f]{2})+\s+([A-Z][\w.]+)", dump, re.MULTILINE)
    assert [name for name in names if name != "PAD"] == MNEMONICS
    assert "Bad packet" not in dump
    assert f"tid: {PID}  cpu: -1" in dump


def test_perf_reads_an_unclosed_file(tmp_path: Path, recording: Writer, perf: PerfRunner) -> None:
    """The recorder was killed, and wrote bytes that no flush has counted."""
    path = tmp_path / "perf.data"
    recording.comm(PID, PID, TSC + 7000, "late")
    with path.open("ab") as file:
        file.write(b"\xff" * 100)
    assert addresses(perf(path, "--itrace=i0ns", "-F", "ip")) == PATH
    assert perf(path, "--itrace=e") == ""


def test_perf_reads_the_file_after_each_step(
    tmp_path: Path, program: Path, perf: PerfRunner
) -> None:
    """Copies after each step are readable, with more instructions each time."""
    path = tmp_path / "perf.data"
    lines = []
    with open_writer(path) as out:
        for step in (
            lambda: write_program_start(out, program),
            lambda: write_packets(out),
            lambda: write_packets(out, PID + 1),
        ):
            copy = tmp_path / "copy"
            shutil.copyfile(path, copy)
            lines.append(len(addresses(perf(copy, "--itrace=i0ns", "-F", "ip"))))
            step()
            out.flush()
    assert lines == [0, 0, len(PATH)]


def test_perf_decodes_each_thread(tmp_path: Path, program: Path, perf: PerfRunner) -> None:
    """Each thread has its queue; perf takes pid and name of a new thread from FORK."""
    path = tmp_path / "perf.data"
    with open_writer(path) as out:
        time = write_program_start(out, program)
        for tid in (PID + 1, PID + 2):
            out.fork(PID, PID, tid, PID, time)
        out.comm(PID, PID + 2, time, "worker")
        for tid in (PID + 2, PID, PID + 1):
            write_packets(out, tid)
    output = perf(path, "--itrace=i0ns", "-F", "comm,pid,tid,ip")
    rows = [tuple(line.split()) for line in output.splitlines()]
    for tid, name in ((PID, "tiny"), (PID + 1, "tiny"), (PID + 2, "worker")):
        thread_rows = [row for row in rows if row[1] == f"{PID}/{tid}"]
        assert [row[2] for row in thread_rows] == PATH
        assert {row[0] for row in thread_rows} == {name}
    assert len(rows) == 3 * len(PATH)


def test_perf_decodes_a_stream_in_many_chunks(
    tmp_path: Path, program: Path, perf: PerfRunner
) -> None:
    """Chunks end between packets."""
    path = tmp_path / "perf.data"
    cuts = [0, 16, 24, 31, 35, 37, 39, 46, 47, 48]  # the packets' bounds
    with open_writer(path) as out:
        write_program_start(out, program)
        for start, end in pairwise(cuts):
            out.auxtrace(PID, PID, PACKETS[start:end], None, TSC + 5000)
    assert cuts[-1] == len(PACKETS)
    assert addresses(perf(path, "--itrace=i0ns", "-F", "ip")) == PATH


def test_perf_converts_time_of_the_first_packet(
    tmp_path: Path, program: Path, perf: PerfRunner
) -> None:
    """The TSC runs at 3 GHz, and its clock begins at another value."""
    path = tmp_path / "perf.data"
    clock = TimeConversion(31, round((1 << 31) / 3), 123_456_789)
    with open_writer(path, time=clock, tsc_ctc=(250, 2), max_nonturbo_ratio=30) as out:
        write_program_start(out, program)
        write_packets(out)
    output = perf(path, "--itrace=i0ns", "--ns", "-F", "time,ip")
    seconds, nanoseconds = output.split(":")[0].strip().split(".")
    assert int(seconds) * 10**9 + int(nanoseconds) == clock.to_nanoseconds(TSC)


def test_perf_ignores_text_pokes_of_processes(
    tmp_path: Path, program: Path, perf: PerfRunner
) -> None:
    """TEXT_POKE of a process neither stops perf nor changes what perf decodes."""
    path = tmp_path / "perf.data"
    with open_writer(path) as out:
        time = write_program_start(out, program)
        out.text_poke(PID, PID, time, 0x401000, b"\xcc" * 0x18)
        out.text_poke(PID, PID, time, 0x7000_0000, bytes(200_000), b"\xcc" * 200_000)
        write_packets(out)
    assert addresses(perf(path, "--itrace=i0ns", "-F", "ip")) == PATH
    assert perf(path, "--itrace=e") == ""


def test_perf_reads_build_ids_of_feature_and_mapping(
    tmp_path: Path, program: Path, perf: PerfRunner
) -> None:
    notes = subprocess.run(
        ["readelf", "-n", program], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    match = re.search(r"Build ID: (\w+)", notes)
    assert match is not None
    build_id = bytes.fromhex(match[1])
    feature, inline = tmp_path / "feature", tmp_path / "inline"
    for path in (feature, inline):
        out = open_writer(path)
        write_program_start(out, program, build_id if path is inline else None)
        write_packets(out)
        out.close(build_ids={str(program): build_id} if path is feature else None)
        assert addresses(perf(path, "--itrace=i0ns", "-F", "ip")) == PATH
    assert f"<{match[1]}>]: r-xp {program}\n" in perf(inline, "-D")
    listed = subprocess.run(
        [PERF or "perf", "buildid-list", "-i", feature],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path)},
        check=True,
        timeout=300,
    )
    assert f"{match[1]} {program}\n" in listed.stdout


def test_perf_prints_the_header(tmp_path: Path, recording: Writer, perf: PerfRunner) -> None:
    """perf prints rtit's facts as the CPU's description."""
    recording.close(facts={"status": "0"})
    header = perf(tmp_path / "perf.data", "--header-only")
    assert "# cpudesc : rtit: profile=skylake; time=modelled; status=0\n" in header
    assert "# cpuid : GenuineIntel,6,94,3\n" in header
    assert "# arch : x86_64\n" in header
    assert re.search(r"# cmdline : rtit record -- ./tiny *\n", header)
    assert "name = intel_pt/pt,mtc,tsc,branch/u," in header
    assert "config = 0x2601" in header
    assert "# pmu mappings: software = 1, intel_pt = 8\n" in header
    assert "# contains AUX area data" in header


def test_perf_prints_the_filter(tmp_path: Path, program: Path, perf: PerfRunner) -> None:
    path = tmp_path / "perf.data"
    expression = f"filter 0x0/0x18@{program}"
    with open_writer(path, filter=expression) as out:
        write_program_start(out, program)
        write_packets(out)
    assert f"Filter string       {expression}\n" in perf(path, "-D")
    assert addresses(perf(path, "--itrace=i0ns", "-F", "ip")) == PATH


def test_perf_reports_truncated_aux_data_as_lost(
    tmp_path: Path, program: Path, perf: PerfRunner
) -> None:
    """The AUX record has the truncated flag."""
    path = tmp_path / "perf.data"
    with open_writer(path) as out:
        write_program_start(out, program)
        out.auxtrace(PID, PID, PACKETS, None, TSC + 5000)
        out.aux(PID, PID, TSC + 5000, 0, len(PACKETS), 1)
    assert "Lost trace data" in perf(path, "--itrace=e")
    with PerfData(path) as file:
        assert next(r for r in file.records() if r.name == "AUX").flags == 1  # type: ignore[attr-defined]
