"""Stock perf as the judge of our files: hand-made packets of a program laid out by hand."""

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

Perf = Callable[..., str]


@pytest.fixture
def perf(tmp_path: Path) -> Perf:
    """Runs `perf script` on a file; fails the test unless perf is content."""

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


def new(path: Path, **options: object) -> Writer:
    return Writer(
        path,
        config=0x2601,  # pt, mtc, tsc, branch
        cpuid="GenuineIntel,6,94,3",
        cmdline=["rtit", "record", "--", "./tiny"],
        facts={"profile": "skylake", "time": "modelled"},
        **options,  # type: ignore[arg-type]
    )


def begin(out: Writer, program: Path, build_id: bytes | None = None) -> int:
    """The sideband of a program that starts; returns the time, in ns, just before its trace."""
    time = out.time.to_nanoseconds(TSC) - 1000
    out.comm(PID, PID, time, "tiny", by_exec=True)
    place = (0x401000, 0x1000, 0x1000, 5, 2, 8, 1, 4711, 0)
    out.mmap2(PID, PID, time + 1, *place, str(program), build_id)
    out.itrace_start(PID, PID, time + 2)
    return time + 3


def trace(out: Writer, tid: int = PID) -> None:
    out.auxtrace(tid, PID, PACKETS, None, TSC + 5000)
    out.aux(PID, tid, out.time.to_nanoseconds(TSC + 5000), 0, len(PACKETS))


@pytest.fixture
def recording(tmp_path: Path, program: Path) -> Iterator[Writer]:
    """A writer with one thread's trace in it; the file is `perf.data` of the test's folder."""
    with new(tmp_path / "perf.data") as out:
        begin(out, program)
        trace(out)
        yield out


def addresses(output: str) -> list[str]:
    return output.split()


def test_the_path(tmp_path: Path, recording: Writer, perf: Perf) -> None:
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


def test_how_a_thread_ended_and_its_instructions_are_passed_over(
    tmp_path: Path, recording: Writer, perf: Perf
) -> None:
    """It lies in the EXIT record, whose time perf finds behind it."""
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


def test_the_packets(tmp_path: Path, recording: Writer, perf: Perf) -> None:
    recording.close()
    dump = perf(tmp_path / "perf.data", "-D")
    names = re.findall(r"^\.\s+[0-9a-f]{8}: (?: [0-9a-f]{2})+\s+([A-Z][\w.]+)", dump, re.MULTILINE)
    assert [name for name in names if name != "PAD"] == MNEMONICS
    assert "Bad packet" not in dump
    assert f"tid: {PID}  cpu: -1" in dump


def test_a_killed_recorder(tmp_path: Path, recording: Writer, perf: Perf) -> None:
    """Not closed, and something written that no flush has counted."""
    path = tmp_path / "perf.data"
    recording.comm(PID, PID, TSC + 7000, "late")
    with path.open("ab") as file:
        file.write(b"\xff" * 100)
    assert addresses(perf(path, "--itrace=i0ns", "-F", "ip")) == PATH
    assert perf(path, "--itrace=e") == ""


def test_killed_at_every_point(tmp_path: Path, program: Path, perf: Perf) -> None:
    """Copies taken after each step are all read, with ever more in them."""
    path = tmp_path / "perf.data"
    lines = []
    with new(path) as out:
        for step in (lambda: begin(out, program), lambda: trace(out), lambda: trace(out, PID + 1)):
            copy = tmp_path / "copy"
            shutil.copyfile(path, copy)
            lines.append(len(addresses(perf(copy, "--itrace=i0ns", "-F", "ip"))))
            step()
            out.flush()
    assert lines == [0, 0, len(PATH)]


def test_threads(tmp_path: Path, program: Path, perf: Perf) -> None:
    """Each thread has its queue; perf takes pid and name of a new one from FORK."""
    path = tmp_path / "perf.data"
    with new(path) as out:
        time = begin(out, program)
        for tid in (PID + 1, PID + 2):
            out.fork(PID, PID, tid, PID, time)
        out.comm(PID, PID + 2, time, "worker")
        for tid in (PID + 2, PID, PID + 1):
            trace(out, tid)
    output = perf(path, "--itrace=i0ns", "-F", "comm,pid,tid,ip")
    rows = [tuple(line.split()) for line in output.splitlines()]
    for tid, name in ((PID, "tiny"), (PID + 1, "tiny"), (PID + 2, "worker")):
        mine = [row for row in rows if row[1] == f"{PID}/{tid}"]
        assert [row[2] for row in mine] == PATH
        assert {row[0] for row in mine} == {name}
    assert len(rows) == 3 * len(PATH)


def test_a_stream_in_many_chunks(tmp_path: Path, program: Path, perf: Perf) -> None:
    """A thread's flow goes on from one AUXTRACE to the next; cuts are between packets."""
    path = tmp_path / "perf.data"
    cuts = [0, 16, 24, 31, 35, 37, 39, 46, 47, 48]  # the packets' bounds
    with new(path) as out:
        begin(out, program)
        for start, end in pairwise(cuts):
            out.auxtrace(PID, PID, PACKETS[start:end], None, TSC + 5000)
    assert cuts[-1] == len(PACKETS)
    assert addresses(perf(path, "--itrace=i0ns", "-F", "ip")) == PATH


def test_time(tmp_path: Path, program: Path, perf: Perf) -> None:
    """3 GHz and a clock that began elsewhere: perf's time of the first packet is ours."""
    path = tmp_path / "perf.data"
    clock = TimeConversion(31, round((1 << 31) / 3), 123_456_789)
    with new(path, time=clock, tsc_ctc=(250, 2), max_nonturbo_ratio=30) as out:
        begin(out, program)
        trace(out)
    output = perf(path, "--itrace=i0ns", "--ns", "-F", "time,ip")
    seconds, nanoseconds = output.split(":")[0].strip().split(".")
    assert int(seconds) * 10**9 + int(nanoseconds) == clock.to_nanoseconds(TSC)


def test_code_without_a_file_is_passed_over(tmp_path: Path, program: Path, perf: Perf) -> None:
    """TEXT_POKE of a process neither stops perf nor changes what it decodes."""
    path = tmp_path / "perf.data"
    with new(path) as out:
        time = begin(out, program)
        out.text_poke(PID, PID, time, 0x401000, b"\xcc" * 0x18)
        out.text_poke(PID, PID, time, 0x7000_0000, bytes(200_000), b"\xcc" * 200_000)
        trace(out)
    assert addresses(perf(path, "--itrace=i0ns", "-F", "ip")) == PATH
    assert perf(path, "--itrace=e") == ""


def test_build_ids(tmp_path: Path, program: Path, perf: Perf) -> None:
    """Both as a feature and in the mapping's own record."""
    notes = subprocess.run(
        ["readelf", "-n", program], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    match = re.search(r"Build ID: (\w+)", notes)
    assert match is not None
    build_id = bytes.fromhex(match[1])
    feature, inline = tmp_path / "feature", tmp_path / "inline"
    for path in (feature, inline):
        out = new(path)
        begin(out, program, build_id if path is inline else None)
        trace(out)
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


def test_the_header(tmp_path: Path, recording: Writer, perf: Perf) -> None:
    """perf prints rtit's facts as the CPU's description, and knows the rest."""
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


def test_the_filter(tmp_path: Path, program: Path, perf: Perf) -> None:
    path = tmp_path / "perf.data"
    expression = f"filter 0x0/0x18@{program}"
    with new(path, filter=expression) as out:
        begin(out, program)
        trace(out)
    assert f"Filter string       {expression}\n" in perf(path, "-D")
    assert addresses(perf(path, "--itrace=i0ns", "-F", "ip")) == PATH


def test_truncated_aux_data_is_a_loss(tmp_path: Path, program: Path, perf: Perf) -> None:
    """AUX with the truncated flag: perf reports the loss."""
    path = tmp_path / "perf.data"
    with new(path) as out:
        begin(out, program)
        out.auxtrace(PID, PID, PACKETS, None, TSC + 5000)
        out.aux(PID, PID, TSC + 5000, 0, len(PACKETS), 1)
    assert "Lost trace data" in perf(path, "--itrace=e")
    with PerfData(path) as file:
        assert next(r for r in file.records() if r.name == "AUX").flags == 1  # type: ignore[attr-defined]
