"""The end of a thread's path, decoded from a PSB near the end or from the beginning."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from programs.build import SOURCES, CannotBuildError, compiled
from rtit.gdb import thread_path
from rtit.gdb.thread_path import ThreadPath
from rtit.trace import MemorySource, Stream
from support.gdb import record_program
from support.properties import examples


@pytest.fixture(scope="module", params=["psb_period=0", "cyc=1,mtc_period=3,psb_period=0"])
def stream(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stream]:
    """A stream with hundreds of PSBs."""
    try:
        source = str(SOURCES / "sorting.c")
        exe = compiled("sorting", [source], language="c", flags=["-O1"], libraries=["-lm"])
    except CannotBuildError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("sorting")
    data = record_program(folder, exe, "4000", event=f"intel_pt/{request.param}/u")
    with rtit.Trace(data) as trace:
        yield trace.streams[0]


def damaged(packets: bytes, at: int, size: int, kind: str) -> bytes:
    """Return packets of which `size` bytes are missing, doubled or no packets."""
    at = len(packets) * at // 1000
    found = packets[at : at + size]
    replacement = {"missing": b"", "doubled": found * 2, "wrong": b"\x02\xff" * (size // 2)}[kind]
    return packets[:at] + replacement + packets[at + size :]


DAMAGE = st.lists(
    st.tuples(
        st.integers(0, 1000),
        st.integers(1, 5000),
        st.sampled_from(["missing", "doubled", "wrong"]),
    ),
    max_size=2,
)


@examples(40)
@given(
    limit=st.integers(1, 60_000),
    case=st.one_of(
        st.tuples(st.just(0), DAMAGE), st.tuples(st.sampled_from([500, 900, 990]), st.just([]))
    ),
)
def test_end_of_path_equals_that_of_the_whole_stream(
    stream: Stream, limit: int, case: tuple[int, list[tuple[int, int, str]]]
) -> None:
    since, damage = case
    packets = stream.read()
    for each in damage:
        packets = damaged(packets, *each)
    source = stream.copy_with(source=MemorySource(packets))
    times = [batch.time for batch in source.rows()]
    first, last = int(times[0][0]), int(times[-1][-1])
    start = first + (last - first) * since // 1000 if since else 0
    path = ThreadPath([source], limit, start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_path, "_MIN_DECODED_BYTES", len(packets))
        whole = ThreadPath([source], limit, start)
    assert whole.is_whole
    if not damage and not since and limit < 10_000:
        assert not path.is_whole
    # Damaged packets can look like a TSC, after which all times are wrong.
    for name in ("start", "last", "end", "gap_after", *([] if damage else ["time"])):
        assert np.array_equal(getattr(path, name), getattr(whole, name)), name
    for name in ("row_instructions", "next_ip", "left_traced_code", "gap_count"):
        assert getattr(path, name) == getattr(whole, name), name
    assert path.last_branch_target() == whole.last_branch_target()
    if whole.sync_point is None:
        assert path.sync_point is None
    else:
        assert path.packets_from_sync_point() == whole.packets_from_sync_point()
        counts = [each.instruction_count_for_gdb(packets=True) for each in (path, whole)]
        assert counts[0] == counts[1]
