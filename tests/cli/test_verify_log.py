"""`rtit verify` prints how often the recorder of a system compared QEMU's log, and the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.perfdata.log_comparisons import FACT
from rtit.trace import Trace
from support.recordings import Recorder

WHAT = "comparisons of QEMU's log with the state of the processors"


@pytest.mark.parametrize(
    ("differences", "line", "verdict"),
    [
        (0, f"CR3: identical: 5,000 {WHAT}", "identical: "),
        (2, f"CR3: DIFFERENT: 2 of 5,000 {WHAT}", "DIFFERENT: QEMU's log and the state of the "),
    ],
)
def test_differences_of_log_and_state_fail(
    differences: int,
    line: str,
    verdict: str,
    program: Callable[[str], Path],
    record: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live = record([program("far")])
    fact = f"0 of 7357 for CPL, {differences} of 5000 for CR3"
    monkeypatch.setattr(Trace, "facts", property(lambda _: {FACT: fact}))
    status = main(["verify", "--truth", str(live.truth), str(live.data)])
    assert status == (1 if differences else 0)
    *_, cpl, cr3, last = capsys.readouterr().out.splitlines()
    assert cpl == f"CPL: identical: 7,357 {WHAT}"
    assert cr3 == line
    assert last.startswith(verdict)
