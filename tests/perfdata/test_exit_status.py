"""Exit status and instruction count in EXIT records."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.perfdata import ExitStatus, Fault, PerfData, Writer, records
from rtit.perfdata.records import pack_exit_status, unpack_exit_status

U64 = st.integers(0, 2**64 - 1)
FAULTS = st.builds(Fault, U64, st.integers(-(2**31), 2**31 - 1), U64)
ENDINGS = st.builds(
    ExitStatus, st.integers(0, 0xFFFF), st.booleans(), st.booleans(), st.none() | FAULTS
)


@given(ENDINGS, st.binary(max_size=8))
def test_exit_status_round_trips(ending: ExitStatus, following: bytes) -> None:
    assert unpack_exit_status(pack_exit_status(ending) + following) == ending


@given(st.binary(max_size=64))
def test_exit_record_without_rtit_data_has_no_exit_status(data: bytes) -> None:
    assert unpack_exit_status(data) is None
    whole = pack_exit_status(ExitStatus(0))
    assert unpack_exit_status(whole[: len(data) % len(whole)]) is None


@pytest.mark.parametrize("status", [0x0300, 0, 0xFF00, signal.SIGSEGV, signal.SIGABRT | 0x80])
def test_exit_status_matches_waitpid(status: int) -> None:
    ending = ExitStatus(status)
    code = os.waitstatus_to_exitcode(status)
    assert ending.exit_code == (code if code >= 0 else None)
    assert ending.signal == (-code if code < 0 else None)


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (ExitStatus(0x0300), "exit code 3"),
        (ExitStatus(signal.SIGTERM), "SIGTERM"),
        (ExitStatus(signal.SIGRTMIN + 2), "SIGRTMIN+2"),
        (ExitStatus(33), "signal 33"),
        (
            ExitStatus(signal.SIGSEGV, fault=Fault(0x401000, 1, 0x10)),
            "SIGSEGV at address 0x10, instruction 0x401000",
        ),
    ],
    ids=str,
)
def test_exit_status_is_printed_as_code_or_signal(ending: ExitStatus, text: str) -> None:
    assert str(ending) == text


def test_exit_record_has_status_only_if_given(tmp_path: Path) -> None:
    ending = ExitStatus(signal.SIGBUS, True, True, Fault(0x401000, 2, 0x7FFF_0000))
    with Writer(tmp_path / "perf.data", config=1, cpuid="") as out:
        out.exit(7, 7, 8, 8, 1000)
        out.exit(7, 7, 7, 7, 2000, ending)
        out.exit(7, 7, 9, 7, 3000, instructions=5)
        out.exit(7, 7, 6, 7, 4000, ending, 2**64 - 1)
    with PerfData(tmp_path / "perf.data") as data:
        ends = [each for each in data.records() if isinstance(each, records.Exit)]
    assert [(each.tid, each.time) for each in ends] == [
        (8, 1000),
        (7, 2000),
        (9, 3000),
        (6, 4000),
    ]
    assert [each.exit_status for each in ends] == [None, ending, None, ending]
    assert [each.instructions for each in ends] == [None, None, 5, 2**64 - 1]
