"""Invalid arguments and failing sources raise errors.

They never crash the interpreter, hang, or give a result as if nothing had happened.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from rtit import _core
from rtit.capture.ptrace.session import check_attachable_processes
from rtit.errors import RtitError
from rtit.image import Image
from rtit.packets import encode
from rtit.perfdata import Writer
from rtit.trace import Trace
from support.streams import SYNC, ChunkedBytes

HUGE = range(1, 10**12)
NO_BYTES = "\ud800"
CORE: Any = _core  # what it is given here is nothing that its types allow
PACKETS = encode("PSB") + encode("CBR", ratio=10) + encode("PSBEND")

CALLS: list[Callable[[], object]] = [
    lambda: CORE.check_processes(HUGE),
    lambda: CORE.Tracer.attach(HUGE),
    lambda: CORE.Tracer(HUGE),
    lambda: CORE.check_program(HUGE),
    lambda: CORE.Names(HUGE),
    lambda: CORE.StreamDecoder(b"", CORE.Space(), ranges=HUGE),
    lambda: CORE.Listing(HUGE, CORE.Space(), CORE.Names([]), tid=1),
    lambda: CORE.BulkUnit().set_ranges(HUGE),
    lambda: CORE.arrow_schema(HUGE),
    lambda: CORE.arrow_array([], HUGE),
    lambda: check_attachable_processes(HUGE),
    lambda: CORE.ElfFile(NO_BYTES),
    lambda: CORE.TruthFile(NO_BYTES),
    lambda: CORE.check_program([NO_BYTES]),
    lambda: CORE.check_program(["/bin/true"], env={NO_BYTES: ""}),
    lambda: CORE.check_program(["/bin/true"], cwd=NO_BYTES),
    lambda: CORE.Tracer(["/bin/true"], truth=NO_BYTES),
    lambda: Trace(NO_BYTES),
    lambda: Trace("a\0b"),
    lambda: rtit.Image().add_elf(NO_BYTES),
    lambda: CORE.disassemble(b"\x90", 1, 10**30),
    lambda: CORE.demangle(NO_BYTES),
    lambda: rtit.record(["/bin/true", NO_BYTES]),
    lambda: rtit.record([NO_BYTES]),
]


@pytest.mark.parametrize("call", CALLS)
def test_invalid_argument_raises_usage_error(call: Callable[[], object]) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError, RtitError)):
        call()


class FailedError(Exception):
    pass


def failing_source(pieces: int) -> Iterator[bytes]:
    yield from repeat(PACKETS * 10_000, pieces)
    raise FailedError


def drain(take: Callable[[], object]) -> None:
    while take() is not None:
        pass


@pytest.mark.parametrize("method", ["rows", "runs", "instructions", "branches", "count"])
def test_source_error_is_raised_again(method: str) -> None:
    flow = _core.StreamDecoder(failing_source(3), _core.Space())
    take = flow.count if method == "count" else lambda: getattr(flow, method)(1 << 16)
    for _ in range(3):
        with pytest.raises(FailedError):
            drain(take)


def test_source_error_propagates_from_packets() -> None:
    scan = _core.PacketScan(failing_source(3))
    for _ in range(3):
        with pytest.raises(FailedError):
            drain(lambda: scan.next(1 << 16))


def test_source_error_before_first_chunk_propagates() -> None:
    with pytest.raises(FailedError):
        _core.StreamDecoder(failing_source(0), _core.Space())


@pytest.mark.parametrize(
    "take", ["_core.StreamDecoder(repeat(b''), _core.Space())", "_core.PacketScan(repeat(b''))"]
)
def test_endless_empty_chunks_can_be_interrupted(take: str) -> None:
    script = f"from itertools import repeat\nfrom rtit import _core\nprint(flush=True)\n{take}\n"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=300)
        finally:
            process.kill()
    assert b"KeyboardInterrupt" in said


@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 5), st.none() | st.integers(0, 300)), min_size=1, max_size=6),
)
def test_chunk_sizes_do_not_change_results(
    tmp_path_factory: pytest.TempPathFactory,
    snapshot: bool,
    pieces: list[tuple[int, int | None]],
) -> None:
    """Pieces may overlap or have gaps between them."""
    path = tmp_path_factory.getbasetemp() / "sizes.data"
    cpuid = "GenuineIntel,6,94,3"
    with Writer(path, config=0x2601, cpuid=cpuid, snapshot=snapshot) as out:
        for number, offset in pieces:
            out.auxtrace(7, 7, PACKETS * number, offset, 1)
    with Trace(path) as trace:
        sizes = [stream.size for stream in trace.streams]
        assert sizes == [len(stream.read()) for stream in trace.streams]
        for stream in trace.streams:
            assert stream.size == sum(span.end - span.start for span in stream.ledger())
        assert f" {sum(sizes):,} bytes of PT>" in repr(trace)


def test_decode_accepts_user_defined_source() -> None:
    """Its size may differ from the number of its bytes."""
    stream = rtit.decode(ChunkedBytes(SYNC, 5), Image()).streams[0]
    assert stream.size == sum(span.end - span.start for span in stream.ledger())
