"""Commands about calls say that packets are lost in the middle of the calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from calls.instrumented import build_instrumented, record
from rtit.cli.main import main
from rtit.trace import Trace
from support.recordings import require_backend

NO_PACKET = bytes.fromhex("02ff")


@pytest.fixture(scope="module")
def recording_with_gap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording in which some packets between two PSBs are overwritten."""
    require_backend("qemu")
    folder = tmp_path_factory.mktemp("gap")
    record(build_instrumented("unwinding.c"), "qemu", folder, "-e", "intel_pt/psb_period=0/u")
    path = folder / "data"
    with Trace(path) as trace:
        [stream] = trace.streams
        packets = stream.read()
    content = path.read_bytes()
    middle = content.index(packets[len(packets) // 2 :][:64])
    path.write_bytes(content[:middle] + NO_PACKET * 8 + content[middle + 16 :])
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["calls"],
        ["calls", "--folded"],
        ["calls", "--flamegraph"],
        ["calls", "--speedscope"],
        ["calls", "--json"],
        ["calls", "--function", "main", "--durations"],
        ["timeline", "--for", "chrome"],
        ["report", "--sort", "total"],
        ["profile", "--for", "callgrind"],
        ["profile", "--for", "pprof", "-o", "profile"],
    ],
    ids=" ".join,
)
def test_gap_gives_exit_code_3_and_its_position(
    words: list[str],
    recording_with_gap: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([words[0], str(recording_with_gap), *words[1:]]) == 3
    printed = capsys.readouterr()
    if words[0] == "profile":
        assert "bytes of PT (" in printed.err
        assert "could not be decoded exactly" in printed.err
    else:
        said = printed.out if words[0] == "report" else printed.err
        with Trace(recording_with_gap) as trace:
            spans = [span for stream in trace.streams for span in stream.spans() if span.is_gap]
        assert spans
        for span in spans:
            assert str(span) in said


@pytest.mark.parametrize("option", [[], ["--folded"], ["--flamegraph"]], ids=str)
def test_function_after_a_gap_has_a_note(
    option: list[str], recording_with_gap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["calls", str(recording_with_gap), "--min-share", "0", *option])
    assert " [after lost packets]" in capsys.readouterr().out
