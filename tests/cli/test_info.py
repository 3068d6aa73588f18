"""`rtit info` describes a recording and what it lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.perfdata import SwitchRecords, TimeConversion, Writer

HASE = "hase/loopy-skylake.perf.data"


def info_output(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    assert main(["info", *words]) == code
    return capsys.readouterr().out


def test_recording_by_perf_is_described_as_by_perf_report(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The expected values are those of `perf report --header-only`."""
    text = info_output(capsys, 3, str(traces / HASE))
    assert "processor:   GenuineIntel,6,94,3" in text
    assert "switches:    SWITCH_CPU_WIDE, of all threads" in text
    assert "user code, one buffer per CPU" in text
    # psb_period 3: 2**14 bytes; an MTC each 8 clocks of 24 MHz, 266/2 ticks of 3192 MHz each
    assert "PSB about every 16,384 bytes" in text
    assert "MTC every 8 crystal clocks (333 ns)" in text
    row = next(line for line in text.splitlines() if "cpu 2" in line)
    assert row.split()[0] == "1,392"
    assert "loopy" in text
    assert "--map RECORDED=LOCAL" in text


def test_map_option_locates_a_missing_file(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(info_output(capsys, 3, "--json", str(traces / HASE)))
    missing = [each["path"] for each in found["files"] if each["problem"]]
    (loopy,) = [path for path in missing if "loopy" in path]
    mapping = f"{loopy}={traces / 'hase' / 'loopy.elf'}"
    again = json.loads(info_output(capsys, 0, "--json", "--map", mapping, str(traces / HASE)))
    assert [each["problem"] for each in again["files"] if each["path"] == loopy] == [None]
    listed = info_output(capsys, 0, "--map", mapping, str(traces / HASE)).splitlines()
    assert any(line.strip().startswith(f"{loopy} (build id ") for line in listed)
    assert found["buffers"][0]["size"] == 1392
    assert found["buffers"][0]["first"] <= found["buffers"][0]["last"]


def test_info_describes_recording_of_kernel_and_user_code(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = info_output(capsys, 3, str(traces / "chromeos" / "cpu-wide.perf.data"))
    assert "user code and kernel, one buffer per CPU" in text
    assert "processor:   GenuineIntel,6,78,3" in text
    sizes = [line.split()[0] for line in text.splitlines() if " cpu " in line]
    assert sizes == ["12,240", "137,728"]


def test_losses_and_missing_psb_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "perf.data"
    with Writer(
        path, config=0x2401, cpuid="GenuineIntel,6,94,3", switches=SwitchRecords.CPU_WIDE
    ) as out:
        out.aux(1, 1, 5, 0, 8, 1)
        out.aux(1, 1, 5, 8, 8, 5)
        out.auxtrace(-1, -1, b"\x02\xf3" + b"\x99" * 6, None, 100, cpu=3)
    text = info_output(capsys, 3, str(path))
    assert "2 times the AUX buffer was full" in text
    assert "1 times the AUX data before this has gaps of unknown size" in text
    assert "1 times the processor dropped packets (OVF)" in text
    assert "no PSB: nothing can be decoded" in text
    assert "record with a larger one" in text


def test_info_reports_empty_buffers_of_recording_without_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "perf.data"
    Writer(path, config=0x2401, cpuid="GenuineIntel,6,94,3", cmdline=["rtit", "record"]).close()
    text = info_output(capsys, 0, str(path))
    assert "command:     rtit record" in text
    assert "user code, one buffer per thread" in text
    assert "the buffers are empty" in text


def test_at_option_converts_between_tsc_and_perf_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ns = 1000 + (TSC * 3 >> 1)."""
    path = tmp_path / "perf.data"
    clock = TimeConversion(1, 3, 1000)
    with Writer(path, config=0x2401, cpuid="GenuineIntel,6,94,3", time=clock) as out:
        out.auxtrace(7, 7, bytes(8), None, 100)
    assert (
        info_output(capsys, 0, "--at", "0x10", str(path))
        == "TSC    16 (0x10)\nperf   0.000001024 s\n"
    )
    assert json.loads(info_output(capsys, 0, "--at", "16", "--json", str(path))) == {
        "tsc": 16,
        "nanoseconds": 1024,
    }
    assert info_output(capsys, 0, "--at", "1024ns", str(path)).startswith("TSC    16 ")
    assert info_output(capsys, 0, "--at", "0.000001024s", str(path)).startswith("TSC    16 ")
    assert "clock:       perf's, in ns = 0x3e8 + (TSC * 3 >> 1)" in info_output(
        capsys, 0, str(path)
    )
    for wrong in ("1.5", "xs", "s", "-1", "1e99999999s", str(1 << 64), "nans"):
        assert main(["info", f"--at={wrong}", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 2  # with the usage
