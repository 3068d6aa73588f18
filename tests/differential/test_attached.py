"""Stock perf reads a recording of a program that ran before and after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from differential.oracles import perf
from differential.test_recordings import verified_ips
from support.recordings import Attacher

ProgramBuilder = Callable[[str], Path]


@pytest.mark.parametrize("name", ["workers", "waiting"])
def test_perf_decodes_attached_recording_as_executed(
    name: str, program: ProgramBuilder, attach: Attacher
) -> None:
    live = attach(program(name))
    try:
        theirs, errors = perf.instructions(live.data)
    except perf.PerfMissingError as error:
        pytest.skip(str(error))
    assert errors == []
    ours = verified_ips(live, live.data)
    assert theirs == {tid: ips for tid, ips in ours.items() if ips}
