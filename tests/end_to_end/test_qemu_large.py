"""Large real programs under QEMU: they behave as they do without, and what is decoded is what was
executed, to the last instruction.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from large import PROGRAMS, LargeRecorder
from live import ends
from rtit.trace import Trace
from rtit.views.verify import Verdict, verify


def verdicts(data: Path, truth: Path) -> list[Verdict]:
    with Trace(data) as trace:
        return verify(trace, str(truth))


@pytest.mark.parametrize("name", PROGRAMS)
def test_decoded_is_executed(name: str, large: LargeRecorder) -> None:
    run = large(name)
    assert run.native.code == PROGRAMS[name].code
    assert run.recorded == run.native, run.stderr
    found = verdicts(run.data, run.truth)
    assert [each for each in found if not each.identical] == []
    assert sum(each.instructions for each in found) >= PROGRAMS[name].instructions
    # A killed thread's last packets and truth are sent one after the other; all others are whole.
    whole = {each.tid for each in found if not each.shortfall}
    assert set(ends(run.truth)) <= whole
    # A hash each 2^20 instructions, or where packets are sent: less than a byte for 1000.
    assert run.truth.stat().st_size < 10_000 + sum(each.instructions for each in found) / 1000
