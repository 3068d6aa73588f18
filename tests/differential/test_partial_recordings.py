"""Stock perf and libipt decode recordings with filters, a start or a stop as rtit does.

The recordings are made under QEMU, and verified.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from differential.oracles import libipt, perf
from differential.oracles.raw import Section
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.cli.main import main
from rtit.trace import Trace
from support.recordings import record_to_end, require_backend

ProgramBuilder = Callable[[str], Path]

SELECTIONS: list[dict[str, object]] = [
    {"filters": ("filter even",)},
    {"filters": ("filter main", "filter odd")},
    {"filters": ("tracestop odd",)},
    {"start_at": "even"},
    {"stop_at": "even"},
    {"start_at": "1001", "stop_at": "+2000"},
]


@pytest.fixture(params=SELECTIONS, ids=str)
def partial_recording(
    request: pytest.FixtureRequest, program: ProgramBuilder, tmp_path: Path
) -> Path:
    require_backend("qemu")
    # Without return compression, since libipt's return stack differs where returns mismatch calls.
    record_to_end(
        start_recording(
            RecordRequest(
                [str(program("recursion"))],
                backend="qemu",
                event="intel_pt/noretcomp/u",
                output=tmp_path / "data",
                truth=tmp_path / "truth",
                **request.param,
            )
        )
    )
    assert main(["verify", str(tmp_path / "data"), "--truth", str(tmp_path / "truth")]) == 0
    return tmp_path / "data"


def decoded_ips(partial_recording: Path) -> dict[int, list[int]]:
    with Trace(partial_recording) as trace:
        return {
            stream.tid: [int(ip) for part in stream.instructions() for ip in part.ip]
            for stream in trace.streams
        }


def test_perf_decodes_partial_recording_as_rtit(partial_recording: Path) -> None:
    try:
        theirs, errors = perf.instructions(partial_recording)
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    assert errors == []
    assert theirs == decoded_ips(partial_recording)


def test_libipt_decodes_partial_recording_as_rtit(partial_recording: Path) -> None:
    expected = decoded_ips(partial_recording)
    with Trace(partial_recording) as trace:
        [stream] = trace.streams
        sections = [
            Section(Path(each.path), each.offset, each.end - each.start, each.start)
            for each in trace.images.mappings(stream.tid)
            if each.path.startswith("/")
        ]
        try:
            theirs = libipt.decode(stream.read(), sections)
        except libipt.LibiptMissingError as error:
            pytest.skip(str(error))
    assert [each for each in theirs.errors if each[0] != "eos"] == []
    assert {stream.tid: theirs.ips} == expected
