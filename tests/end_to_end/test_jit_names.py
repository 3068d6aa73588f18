"""Names of JIT code: the recorder notes which perf maps the program wrote, and both back ends
record the memory that has the code.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.image import perf_maps
from rtit.image.perf_maps import PerfMapStamp, find_map_of_time, parse_stamps, stamp_perf_maps
from rtit.trace import Trace
from support.recordings import RTIT, require_backend

SUM, TWICE = "JS:*sum of numbers:1", "twice"
SECOND = 1_000_000_000


@pytest.fixture(params=["qemu", "ptrace"])
def backend(request: pytest.FixtureRequest) -> str:
    require_backend(request.param)
    return str(request.param)


class JitRecording:
    """Return a recording and the perf map of its program."""

    def __init__(self, folder: Path, backend: str, *command: str | Path) -> None:
        self.data = folder / "perf.data"
        options: list[str | Path] = ["--backend", backend, "-q", "-o", self.data]
        ended = subprocess.run(
            [*RTIT, "record", *options, "--", *command],
            cwd=folder, capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
        self.output = ended.stdout
        with Trace(self.data) as trace:
            self.pid = trace.processes[0].pid
        self.map = Path(f"/tmp/perf-{self.pid}.map")

    def instructions_by_function(self, path: Path | None = None) -> dict[str, int]:
        with Trace(path or self.data) as trace:
            return {
                name: count
                for stream in trace.streams
                for name, _, count in stream.instructions_by_function(trace.symbols)
            }


Recorder = Callable[..., JitRecording]


@pytest.fixture
def record_jit(tmp_path: Path, backend: str) -> Iterator[Recorder]:
    made = []

    def recorded(*command: str | Path) -> JitRecording:
        made.append(JitRecording(tmp_path, backend, *command))
        return made[-1]

    yield recorded
    for each in made:
        each.map.unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["map", "dump"])
def test_jit_functions_have_names_in_every_command(
    kind: str,
    program: Callable[[str], Path],
    record_jit: Recorder,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The loop of SUM has 3 instructions and runs 100 times; 3 are around it, and TWICE has 2."""
    recording = record_jit(program("jit_compiler"), kind)
    assert recording.output == "5064\n"
    found = recording.instructions_by_function()
    assert (found[SUM], found[TWICE]) == (303, 2)
    data = str(recording.data)
    for words in (["report", "--json"], ["stat", "--json"]):
        assert main([*words, data]) == 0
        document = json.loads(capsys.readouterr().out)
        assert SUM in str(document["functions"])
        assert document.get("image_problems", []) == []
    assert main(["calls", "--json", "--min-share", "0", data]) == 0
    assert f'"function": "{SUM}"' in capsys.readouterr().out
    assert main(["instructions", "--fields", "sym", "--function", TWICE, data]) == 0
    assert capsys.readouterr().out.split() == [TWICE, f"{TWICE}+0x3"]
    assert main(["profile", "--for", "callgrind", data]) == 0
    assert f"{SUM}\n" in capsys.readouterr().out


def test_map_of_a_later_process_with_the_same_pid_is_not_used(
    program: Callable[[str], Path], record_jit: Recorder
) -> None:
    """A process that continues appends to its map; a new one replaces the map."""
    recording = record_jit(program("jit_compiler"), "map")
    lines = recording.map.read_text()
    recording.map.write_text(f"{lines}1000 10 later\n")
    assert recording.instructions_by_function()[SUM] == 303
    recording.map.write_text(lines.replace("sum", "mus"))
    assert SUM not in recording.instructions_by_function()
    recording.map.write_text(lines[:-1])
    assert SUM not in recording.instructions_by_function()


def test_perf_finds_the_same_names(
    program: Callable[[str], Path], record_jit: Recorder, tmp_path: Path
) -> None:
    perf = shutil.which("perf") or pytest.skip("perf is not installed")
    recording = record_jit(program("jit_compiler"), "map")
    command: list[str | Path] = [
        perf,
        "script",
        "-i",
        recording.data,
        "--itrace=b",
        "-F",
        "ip,sym,dso",
    ]
    printed = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert f" {TWICE} ({recording.map})" in printed


def test_pack_has_the_map(
    program: Callable[[str], Path], record_jit: Recorder, tmp_path: Path
) -> None:
    recording = record_jit(program("jit_compiler"), "map")
    pack = tmp_path / "jit.rtit.zip"
    assert main(["pack", "-o", str(pack), str(recording.data)]) == 0
    with zipfile.ZipFile(pack) as archive:
        assert f"jit/0/perf-{recording.pid}.map" in archive.namelist()
    recording.map.unlink()
    assert recording.instructions_by_function(pack)[SUM] == 303
    assert SUM not in recording.instructions_by_function()


def test_functions_of_node_have_names(tmp_path: Path, record_jit: Recorder, backend: str) -> None:
    if backend != "qemu":
        pytest.skip("single steps take an hour")
    script = tmp_path / "square.js"
    script.write_text(
        "function square(n) { return n * n; }\n"
        "let sum = 0; for (let i = 0; i < 3e5; i++) sum += square(i);\n"
        "console.log(sum);\n"
    )
    tool = shutil.which("node") or pytest.skip("no node")
    node = [tool, "--no-verify-snapshot-checksum", "--no-opt"]
    recording = record_jit(*node, "--perf-basic-prof", script)
    found = recording.instructions_by_function()
    jit = {name: count for name, count in found.items() if name.startswith("JS:")}
    assert any("square" in name and count > 300_000 for name, count in jit.items()), jit


def write_map(pid: int, time: int) -> None:
    path = perf_maps.FOLDER / f"perf-{pid}.map"
    path.write_text("1000 10 f\n")
    os.utime(path, ns=(time, time))


def test_recorder_ignores_a_map_that_is_older_than_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map can be older than a recording that attached to its process."""
    monkeypatch.setattr(perf_maps, "FOLDER", tmp_path)
    ended, own = 1 << 31, os.getpid()
    start = 1_000 * SECOND
    write_map(ended, start - 1)
    assert stamp_perf_maps([ended], start) == {}
    write_map(ended, start)
    stamp = PerfMapStamp(10, 0xE7DDB8F3)
    assert stamp_perf_maps([ended], start) == {ended: stamp}
    process = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot = int(Path("/proc/stat").read_text().partition("btime ")[2].split()[0])
    began = (boot + int(process[19]) // os.sysconf("SC_CLK_TCK")) * SECOND
    write_map(own, began + 5 * SECOND)
    assert stamp_perf_maps([own], began + 10 * SECOND) == {own: stamp}
    write_map(own, began - 10 * SECOND)
    assert stamp_perf_maps([own], began + 10 * SECOND) == {}


def test_map_written_after_a_hardware_recording_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perf_maps, "FOLDER", tmp_path)
    assert find_map_of_time(7, 2.0) is None
    write_map(7, 2 * SECOND)
    assert find_map_of_time(7, 2.0) == str(tmp_path / "perf-7.map")
    assert find_map_of_time(7, 1.5) is None
    (tmp_path / "perf-7.map").unlink()
    os.mkfifo(tmp_path / "perf-7.map")
    assert find_map_of_time(7, 2e9) is None


def test_text_of_stamps_is_read_back() -> None:
    stamps = {7: PerfMapStamp(10, 0xAB), 123: PerfMapStamp(0, 0)}
    assert parse_stamps(perf_maps.format_stamps(stamps)) == stamps
    assert parse_stamps("perf-x.map of -1 bytes") == {}
