"""Which file a command opens, and where it looks for the recorded files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.perfdata import Writer

RECORDED_PATH = "/home/joerg/git/angr/hase/tests/bin/control_flow/control_flow"
RTIT = [sys.executable, "-m", "rtit"]


@pytest.fixture
def small_recording(tmp_path: Path) -> Path:
    """A recording of one packet."""
    with Writer(tmp_path / "perf.data", config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        out.auxtrace(7, 7, bytes([0x02, 0x82] * 8), None, 1)
    return tmp_path / "perf.data"


PACKET_LISTING = "# thread 7, 16 bytes\n00000000  PSB\n"


def run_with_input(words: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*RTIT, *words], input=data, capture_output=True, check=False, timeout=300
    )


def test_input_file_is_an_argument_or_an_option_or_perf_data(
    small_recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small_recording.parent)
    for words in (["packets"], ["packets", "perf.data"], ["packets", "-i", str(small_recording)],
                  ["packets", "--input", "perf.data"]):  # fmt: skip
        assert main(words) == 0
        assert capsys.readouterr().out == PACKET_LISTING
    assert main(["packets", "perf.data", "-i", "perf.data"]) == 2
    assert "two files given: perf.data and -i perf.data" in capsys.readouterr().err
    assert main(["packets", ""]) == 1


def test_dash_reads_a_pipe(small_recording: Path) -> None:
    for command, code in (("packets", 0), ("report", 0), ("instructions", 0)):
        named = subprocess.run([*RTIT, command, small_recording], capture_output=True, check=False)
        read = run_with_input([command, "-"], small_recording.read_bytes())
        assert (named.returncode, read.returncode) == (code, code)
        assert read.stdout == named.stdout.replace(os.fsencode(small_recording), b"<stdin>")
    assert (
        run_with_input(["packets", "-i", "-"], small_recording.read_bytes()).stdout.decode()
        == PACKET_LISTING
    )


def test_dash_reads_a_redirected_file(small_recording: Path) -> None:
    with small_recording.open("rb") as file:
        shown = subprocess.run([*RTIT, "packets", "-"], stdin=file, capture_output=True, check=True)
    assert shown.stdout.decode() == PACKET_LISTING
    raw = run_with_input(["packets", "--raw", "-"], bytes([0x02, 0x82] * 8))
    assert raw.stdout == b"00000000  PSB\n"


def test_named_pipe_is_read_as_a_pipe(small_recording: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen([*RTIT, "packets", fifo], stdout=subprocess.PIPE) as reader:
        fifo.write_bytes(small_recording.read_bytes())
        out, _ = reader.communicate(timeout=300)
    assert out.decode() == PACKET_LISTING


def test_endless_pipe_of_another_format_is_an_error() -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        ended = subprocess.run(
            [*RTIT, "report", "-"], stdin=endless.stdout, capture_output=True, timeout=300,
            check=False,
        )  # fmt: skip
        endless.kill()
    assert ended.returncode == 1
    assert b"<stdin> is not a perf.data file: it begins with 'y\\n" in ended.stderr
    with Path("/dev/zero").open("rb") as zero:
        ended = subprocess.run(
            [*RTIT, "report", "-"], stdin=zero, capture_output=True, timeout=300, check=False
        )
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert b"neither a regular file nor a pipe" in ended.stderr


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", b"empty"), (b"PERF", b"is not a perf.data file"), (b"PERFILE2", b"header")],
)
def test_truncated_header_is_an_error(data: bytes, message: bytes) -> None:
    ended = run_with_input(["report", "-"], data)
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"rtit report: ")
    assert message in ended.stderr


def test_closed_standard_input_is_a_usage_error() -> None:
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *RTIT, "report", "-"],
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert ended.stderr.startswith(b"rtit report: standard input is closed\n  usage: rtit report")


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("pipe", [False, True])
def test_map_option_finds_moved_files(
    traces: Path, tmp_path: Path, folder: bool, pipe: bool
) -> None:
    """A hardware trace; libipt and perf give the expected listing. Its program has moved."""
    elf = traces / "hase" / "control_flow.elf"
    data = traces / "hase" / "control_flow-skylake.perf.data"
    known = (traces / "hase" / "control_flow-skylake.ips.txt").read_text().split()
    (tmp_path / "control_flow").write_bytes(elf.read_bytes())
    mapping = f"{Path(RECORDED_PATH).parent}={tmp_path}" if folder else f"{RECORDED_PATH}={elf}"
    words = ["instructions", "--fields", "ip", "--map", mapping]
    ended = run_with_input([*words, "-" if pipe else str(data)], data.read_bytes() if pipe else b"")
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.decode().split() == known


def test_map_of_an_unrecorded_file_is_an_error(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(traces / "hase" / "control_flow-skylake.perf.data")
    elf = traces / "hase" / "control_flow.elf"
    both = ["--map", "/no/where=/at/all", "--map", f"{RECORDED_PATH}={elf}"]
    for words in (["report", data], ["coverage", data], ["diff", data, data]):
        assert main([*words, *both]) == 2
        text = f"rtit {words[0]}: --map /no/where=/at/all: the recording has no file /no/where\n"
        assert capsys.readouterr().err.startswith(text)
    copy = tmp_path / "copy"
    with Writer(copy, config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        out.auxtrace(7, 7, bytes([0x02, 0x82] * 8), None, 1)
    # an entry that matches one of two recordings is accepted
    assert main(["diff", data, str(copy), *both[2:]]) == 1
    assert "--map" not in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "a", "=b", "a="])
def test_map_option_without_both_paths_is_a_usage_error(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--map", text, "perf.data"]) == 2
    assert f"--map {text}: expected RECORDED=LOCAL" in capsys.readouterr().err
