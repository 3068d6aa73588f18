"""Losses that the kernel reports in flags of AUX records are in the ledger."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.packets import encode
from rtit.perfdata import SwitchRecords, Writer
from rtit.trace import ErrorClass, Trace
from support.limits import limit_recordings

PSB = encode("PSB") + encode("TSC", tsc=10) + b"\x99\x01" + encode("PSBEND")
OFF = bytes(8)


def recording(path: Path, flags: int, switches: SwitchRecords = SwitchRecords.NONE) -> Path:
    """Write two chunks, each a PSB+ and PADs; the AUX record of the first has these flags."""
    per_cpu = switches is not SwitchRecords.NONE
    whole = PSB + OFF
    size = -(-len(whole) // 8) * 8
    with Writer(path, config=0x2401, cpuid="GenuineIntel,6,94,3", switches=switches) as out:
        out.comm(7, 7, 1, "it")
        out.itrace_start(7, 7, 1)
        for number in range(2):
            out.auxtrace(-1 if per_cpu else 7, 7, whole, None, 100, cpu=0 if per_cpu else -1)
            out.aux(7, 7, 5, number * size, size, 0 if number else flags)
    return path


@pytest.mark.parametrize("switches", [SwitchRecords.NONE, SwitchRecords.CPU_WIDE])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (1, ["the AUX buffer was full"]),
        (4, ["has gaps of unknown size"]),
        (8, ["another user had the trace unit"]),
        (13, ["was full", "has gaps", "another user"]),
        (2, []),
        (0, []),
    ],
)
def test_aux_flags_are_losses_in_ledger(
    tmp_path: Path, flags: int, words: list[str], switches: SwitchRecords
) -> None:
    path = recording(tmp_path / "perf.data", flags, switches)
    with Trace(path) as trace:
        (stream,) = trace.streams
        ledger = stream.ledger()
        spans = list(ledger)
    lost = [span for span in spans if span.kind == "lost"]
    half = stream.size // 2
    assert [(span.start, span.end) for span in lost] == [(half, half)] * len(words)
    assert all(word in span.error for word, span in zip(words, lost, strict=True))
    assert {span.cause for span in lost} <= {ErrorClass.HARDWARE_LOSS}
    # no byte is missing or counted twice
    assert spans[0].start == 0
    assert spans[-1].end == stream.size
    assert all(a.end == b.start for a, b in pairwise(spans))
    assert main(["events", str(path)]) == (3 if words else 0)


def test_loss_after_end_of_stream_is_in_ledger(tmp_path: Path) -> None:
    """The AUX record has more bytes than the file."""
    path = tmp_path / "perf.data"
    with Writer(path, config=0x2401, cpuid="GenuineIntel,6,94,3") as out:
        out.comm(7, 7, 1, "it")
        out.auxtrace(7, 7, PSB, None, 100)
        out.aux(7, 7, 5, 0, 1 << 60, 1)
    with Trace(path) as trace:
        (stream,) = trace.streams
        spans = list(stream.ledger())
    assert [(span.start, span.end, span.kind) for span in spans] == [
        (0, stream.size, "exact"),
        (stream.size, stream.size, "lost"),
    ]


def test_number_of_losses_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = recording(tmp_path / "perf.data", 13)
    limit_recordings(monkeypatch, max_losses=2)
    with Trace(path) as trace:
        (stream,) = trace.streams
        assert sum(span.kind == "lost" for span in stream.ledger()) == 2
        (problem,) = trace.image_problems
    assert "more than 2" in str(problem)
    for verb in ("events", "info"):
        assert main([verb, str(path)]) == 3
        assert "losses: there are more than 2" in "".join(capfd.readouterr())
    limit_recordings(monkeypatch, max_losses=3)
    with Trace(path) as trace:
        (stream,) = trace.streams
        assert sum(span.kind == "lost" for span in stream.ledger()) == 3
        assert not trace.image_problems
