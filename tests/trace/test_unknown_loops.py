"""Loops without packets: ticks available for their iterations."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

import rtit
from programs.build import CannotBuildError
from rtit.capture.qemu.installation import QemuInstallation
from rtit.capture.qemu.start import start_qemu
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from rtit.packets import encode
from rtit.trace import Stream, Trace, UnknownLoop, unknown_loops
from rtit.views.verify import verify_threads

# 1000 nop; 1001 nop; 1002 nop; 1003 jmp 1001; 1005 jz 1001; 1007 jmp 1005
CODE = bytes.fromhex("909090ebfc74faebfc")
LEFT = 0x1002
TAKEN, NOT_TAKEN = b"\x06", b"\x04"
"""TNT packets with one result."""
INTO_A_LOOP = 100
"""Largest number of instructions from the packet before the loop to the end of one iteration."""


def ip_packet(name: str, ip: int) -> bytes:
    return encode(name, ip_bytes=6, payload=ip)


def time(ticks: int) -> bytes:
    return encode("TSC", tsc=ticks)


def decode_loop(begin: int, *parts: bytes) -> tuple[Stream, int]:
    """Return the stream, and the offset of the packet that leaves the loop."""
    before = encode("PSB") + time(1000) + b"\x99\x01" + ip_packet("FUP", begin) + encode("PSBEND")
    before += b"".join(parts)
    end = ip_packet("FUP", LEFT) + encode("TIP.PGD", ip_bytes=0)
    image = rtit.Image().add(0x1000, CODE)
    trace = rtit.decode(before + end + time(6000), image)
    return trace.streams[0], len(before)


@pytest.mark.parametrize("between", [0, 40_000])
def test_loop_has_ticks_between_known_times(between: int) -> None:
    """The loop may have begun with the PSB, or right before the next time; also with packets in
    several batches.
    """
    stream, at = decode_loop(0x1000, time(1500), encode("PAD") * between, time(5000))
    assert unknown_loops(stream) == [UnknownLoop(at, LEFT, 5000 - 1500, 6000 - 1000)]


def test_first_tnt_result_may_be_older_than_packet() -> None:
    stream, at = decode_loop(0x1005, time(1200), TAKEN, time(2000), time(5000))
    assert unknown_loops(stream) == [UnknownLoop(at, LEFT, 5000 - 2000, 6000 - 1000)]


def test_loop_without_later_time_has_no_maximum() -> None:
    stream, at = decode_loop(0x1000)
    data = stream.read()[: at + len(ip_packet("FUP", LEFT)) + 1]
    (cut,) = rtit.decode(data, rtit.Image().add(0x1000, CODE)).streams
    assert unknown_loops(cut) == [UnknownLoop(at, LEFT, 0, None)]


def test_loop_with_decreasing_time_has_no_maximum() -> None:
    """A negative number of ticks is impossible."""
    stream, at = decode_loop(0x1005, time(9000), NOT_TAKEN, TAKEN, time(500))
    assert unknown_loops(stream) == [UnknownLoop(at, LEFT, 0, None)]


def test_pipe_reports_loop_without_ticks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is still reported, without an error."""
    (tmp_path / "code").write_bytes(CODE)
    data = decode_loop(0x1000, time(1500))[0].read()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["instructions", "--raw", "-", "--image", f"{tmp_path / 'code'}@1000"]) == 3
    said = capsys.readouterr().err
    assert "the number of iterations is not known" in said
    assert said.count("\n") == 1


def test_stream_without_packetless_loop() -> None:
    (stream,) = rtit.decode(time(1000)).streams
    assert unknown_loops(stream) == []


@pytest.mark.parametrize("event", ["intel_pt//u", "intel_pt/cyc=1/u"])
def test_true_ticks_lie_within_bounds(
    event: str, qemu: QemuInstallation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time of a recording is its instructions, which the truth counts."""
    from support.recordings import record_to_end
    from torture.cases import build_program

    try:
        argv = [str(build_program("signals")), "turning"]
    except CannotBuildError as error:
        pytest.skip(str(error))
    data, truth = tmp_path / "data", tmp_path / "truth"
    record_to_end(
        start_qemu(RecordRequest(argv, output=data, event=event, truth=truth), installation=qemu)
    )
    with Trace(data) as trace:
        (verdict,) = verify_threads(trace, str(truth))
        found = unknown_loops(trace.streams[0])
    assert verdict.identical
    assert len(found) >= 1
    least = sum(each.min_ticks for each in found)
    most = sum(each.max_ticks for each in found if each.max_ticks is not None)
    assert least - len(found) * INTO_A_LOOP <= verdict.repeated <= most
    assert least > verdict.repeated // 2  # the bound is useful
    # One sentence for each loop, with the ticks of all its occurrences.
    loops: dict[int, list[UnknownLoop]] = {}
    for each in found:
        loops.setdefault(each.ip, []).append(each)
    ticks = [f"at least {sum(each.min_ticks for each in loop):,} and " for loop in loops.values()]
    assert main(["instructions", str(data), "--tail", "1"]) == 3
    said = capsys.readouterr().err
    assert all(text in said for text in ticks)
    assert main(["report", str(data), "--json"]) == 3
    [statistics] = json.loads(capsys.readouterr().out)["streams"]
    assert len(statistics["repeats"]) == len(ticks)
    assert all(text in line for text, line in zip(ticks, statistics["repeats"], strict=True))
    assert statistics["missing"] == verdict.repeated
