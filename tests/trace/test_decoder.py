"""A reused decoder gives the results of a new decoder, in any writable buffer."""

from __future__ import annotations

import ctypes
import mmap
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from rtit.errors import ConcurrentUseError, UsageError
from rtit.packets import encode
from rtit.trace import End, Settings, Start, Stream
from rtit.trace.recording.byte_source import MemorySource
from support.streams import SYNC

CODE = bytes.fromhex("7402 90 90 ebfa")
"""1000 je 1004; 1002 nop; 1003 nop; 1004 jmp 1000"""
SIZE = 1 << 16


def image() -> rtit.Image:
    return rtit.Image().add(0x1000, CODE)


def results(count: int, taken: bool = True) -> bytes:
    """Encode results in short TNTs, all taken or all not taken."""
    letter = "T" if taken else "N"
    whole, rest = divmod(count, 6)
    last = encode("TNT", bits=letter * rest) if rest else b""
    return encode("TNT", bits=letter * 6) * whole + last


def afl(source: int, target: int, size: int) -> int:
    def afl_location(ip: int) -> int:
        return ((ip >> 4) ^ (ip << 8)) % size

    return afl_location(target) ^ (afl_location(source) >> 1)


def libxdc(source: int, target: int, size: int) -> int:
    def mixed(ip: int) -> int:
        return (ip ^ (ip >> 31)) * 0x7FB5D329728EA185 % 2**64

    return (mixed(target) ^ (mixed(source) >> 1)) % 2**32 % size


INDEXES = {"afl": afl, "libxdc": libxdc}
BRANCHES: dict[str, Callable[[int], bool]] = {
    "decided": lambda kind: kind not in (End.JUMP, End.CALL),
    "conditional": lambda kind: kind in (End.CONDITIONAL, End.CUT),
}


def expected(stream: Stream, index: str, branches: str, size: int) -> bytes:
    """Return the bitmap of the branches that the interpreter lists."""
    counts: Counter[int] = Counter()
    for batch in stream.branches():
        rows = zip(batch.source.tolist(), batch.target.tolist(), batch.kind.tolist(), strict=True)
        for source, target, kind in rows:
            if target and BRANCHES[branches](kind):
                counts[INDEXES[index](source, target, size)] += 1
    return bytes(min(counts[at], 255) for at in range(size))


def interpreted_branches(data: bytes, code: rtit.Image) -> Stream:
    return Stream(MemorySource(data), code, Settings(walk=True))


def compare(decoder: rtit.Decoder, data: bytes, stream: Stream, index: str, branches: str) -> None:
    bitmap = bytearray(b"\xaa" * 512)
    run = decoder.run(data, bitmap)
    assert bitmap == expected(stream, index, branches, 512)
    counts, ledger = stream.counts(), stream.ledger()
    assert decoder.counts() == counts
    assert list(decoder.ledger()) == list(ledger)
    edges = stream.totals().edges
    assert all(map(np.array_equal, decoder.edges().columns().values(), edges.columns().values()))
    by_trust = (counts.exact_bytes, counts.resumed_bytes, counts.lost_bytes)
    assert (run.exact, run.resumed, run.lost) == by_trust
    assert run.instructions == counts.instructions
    assert run.errors == sum(counts.errors.values())
    assert run.size == len(data) == sum(by_trust)


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("branches", BRANCHES)
def test_reused_decoder_equals_fresh_decoder_on_real_traces(
    traces: Path, index: str, branches: str
) -> None:
    for name in ("chromeos", "dynamorio"):
        assert (traces / name).is_dir()
    data = (traces / "dynamorio" / "pt.bin").read_bytes()
    code = rtit.Image().add_elf(traces / "dynamorio" / "hello")
    decoder = rtit.Decoder(code, index=index, branches=branches)
    for part in (data, data[: len(data) // 2], data):
        compare(decoder, part, interpreted_branches(part, code), index, branches)


def test_reused_decoder_equals_fresh_decoder_on_published_cases(traces: Path) -> None:
    """Forty programs at one address: each replaces the one before."""
    code = rtit.Image()
    decoder = rtit.Decoder(code)
    names = sorted(path.stem for path in (traces / "libipt-cases").glob("*.bin"))
    assert len(names) > 30
    for name in names:
        program = (traces / "libipt-cases" / f"{name}.bin").read_bytes()
        code.remove(0, 1 << 40).add(0x100000, program)
        decoder.invalidate()
        data = (traces / "libipt-cases" / f"{name}.pt").read_bytes()
        for _ in range(2):
            compare(decoder, data, interpreted_branches(data, code), "afl", "decided")


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.booleans(), st.integers(0, 200), st.integers(0, 1 << 20)),
        min_size=1,
        max_size=6,
    )
)
def test_damaged_trace_does_not_affect_next_trace(plans: list[tuple[int, bool, int, int]]) -> None:
    code = image()
    decoder = rtit.Decoder(code)
    for count, taken, at, flip in plans:
        data = bytearray(SYNC + results(count, taken) + results(3, not taken) + SYNC + results(9))
        data[at % len(data)] ^= flip & 0xFF
        del data[len(data) - (flip >> 8) % 30 :]
        compare(decoder, bytes(data), interpreted_branches(bytes(data), code), "afl", "decided")


def edge(count: int) -> bytes:
    """Return the bitmap of `count` taken `je`."""
    bitmap = bytearray(SIZE)
    bitmap[afl(0x1000, 0x1004, SIZE)] = count
    return bytes(bitmap)


def test_bitmap_has_counts_classes_or_sums() -> None:
    decoder = rtit.Decoder(image())
    bitmap = bytearray(SIZE)
    for count in (1, 2, 3, 4, 254, 255, 256, 70_000):
        run = decoder.run(SYNC + results(count), bitmap)
        assert bitmap == edge(min(count, 255))
        assert run.branches == count
        assert run.complete
    # the classes of AFL's technical notes
    for count, each in ((1, 1), (3, 4), (7, 8), (8, 16), (31, 32), (127, 64), (128, 128)):
        decoder.run(SYNC + results(count), bitmap, classes=True)
        assert bitmap == edge(each)
    decoder.run(SYNC + results(200), bitmap)
    decoder.run(SYNC + results(30), bitmap, add=True)
    assert bitmap == edge(230)
    decoder.run(SYNC + results(30), bitmap, add=True)
    assert bitmap == edge(255)
    with pytest.raises(UsageError, match="classes of the sum"):
        decoder.run(SYNC, bitmap, add=True, classes=True)


@pytest.mark.parametrize(
    "form",
    [
        bytearray,
        lambda size: memoryview(bytearray(size)),
        lambda size: np.zeros(size, np.uint8),
        lambda size: np.zeros((256, size // 256), np.uint8),
        lambda size: np.zeros(size // 8, np.uint64),
        lambda size: array("b", bytes(size)),
        lambda size: mmap.mmap(-1, size),
        lambda size: (ctypes.c_ubyte * size)(),
    ],
)
def test_bitmap_accepts_writable_buffers(form: Callable[[int], bytearray]) -> None:
    bitmap = form(SIZE)
    decoder = rtit.Decoder(image())
    decoder.run(bytearray(SYNC + results(7)), bitmap)
    assert bytes(memoryview(bitmap)) == edge(7)
    decoder.run(np.array([*SYNC, *results(1)], "u1").data, bitmap)
    assert bytes(memoryview(bitmap)) == edge(1)


def test_bitmap_may_be_shared_memory() -> None:
    shared = SharedMemory(create=True, size=SIZE)
    try:
        rtit.Decoder(image()).run(SYNC + results(7), shared.buf)
        assert shared.buf is not None
        assert bytes(shared.buf) == edge(7)
    finally:
        shared.close()
        shared.unlink()


@pytest.mark.parametrize(
    ("bitmap", "why"),
    [
        (bytes(64), "read-only"),
        (bytearray(0), "power of two"),
        (bytearray(100), "power of two"),
        (memoryview(bytearray(128))[::2], "not contiguous"),
        ("text", "no contiguous buffer"),
        (5, "no contiguous buffer"),
    ],
)
def test_bitmap_rejects_unusable_buffers(bitmap: bytearray, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        rtit.Decoder(image()).run(SYNC, bitmap)


def test_invalid_settings_raise_usage_error() -> None:
    with pytest.raises(UsageError, match="afl, libxdc"):
        rtit.Decoder(image(), index="AFL")
    with pytest.raises(UsageError, match="decided, conditional"):
        rtit.Decoder(image(), branches="all")
    with pytest.raises(UsageError, match="max_instructions is 0"):
        rtit.Decoder(image(), max_instructions=0)
    with pytest.raises(UsageError, match="filter ranges"):
        rtit.Decoder(image(), ranges=[(0, 1)] * 5)
    with pytest.raises(UsageError, match="the trace is no contiguous buffer"):
        rtit.Decoder(image()).run("text")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="start bits is 8"):
        rtit.Decoder(image()).run(b"", start=Start(0x1000, bits=8))
    for key in (-1, (1, 2), (1, 0, 1 << 64), (1, 0, 0, 0)):
        with pytest.raises(UsageError, match="is no CR3"):
            rtit.Decoder(image(), spaces={key: image()})  # type: ignore[arg-type]
    twice: dict[rtit.trace.SpaceKey, rtit.Image] = {1: image(), (1, 0): image()}
    with pytest.raises(UsageError, match="the same CR3"):
        rtit.Decoder(image(), spaces=twice)


def test_result_counts_bytes_instructions_and_branches() -> None:
    decoder = rtit.Decoder(image())
    whole = SYNC + results(6)
    assert decoder.run(whole) == (len(whole), len(whole), 0, 0, 0, False, 11, 6)
    cut = whole + encode("TIP", ip_bytes=6, payload=0x1000)[:4]
    run = decoder.run(cut)
    assert run.truncated
    assert not run.complete
    assert (run.exact, run.lost, run.errors) == (len(whole), 4, 1)
    assert not decoder.run(b"").complete
    lost = decoder.run(SYNC + encode("TIP", ip_bytes=6, payload=0x5000))
    assert lost.errors == 1
    assert not lost.truncated
    assert not lost.complete
    # no PSB, and a known state
    assert decoder.run(results(6)).lost == 1
    known = decoder.run(results(6), start=Start(0x1000))
    assert known.complete
    assert known.branches == 6
    assert decoder.run(results(6)).lost == 1


def test_counts_have_cycles_and_frequency() -> None:
    """Two MTCs are 10 ticks and 8 cycles apart, in every trace, and equal those of `decode`."""
    known = {"nom_freq": 20, "cpuid_15": (1, 10), "start_time": 1 << 56, "guest_tsc": (5, 1 << 48)}
    tma = encode("TMA", ctc=0, fast_counter=0)
    head = SYNC.replace(encode("CBR", ratio=10), tma + encode("CBR", ratio=10))
    packets = encode("MTC", ctc=1) + encode("CYC", cycles=8) + encode("MTC", ctc=2) + results(6)
    decoder = rtit.Decoder(image(), **known)  # type: ignore[arg-type]
    for _ in range(2):
        assert decoder.run(head + packets).complete
        assert decoder.counts().frequency == 0.8
    (stream,) = rtit.decode(head + packets, image(), **known).streams  # type: ignore[arg-type]
    assert decoder.counts() == stream.counts()
    plain = rtit.Decoder(image())
    plain.run(head + packets)
    assert plain.counts().frequency is None
    with pytest.raises(UsageError, match="mtc_freq is 16"):
        rtit.Decoder(image(), mtc_freq=16)


def test_invalidate_makes_changed_code_visible() -> None:
    code = image()
    decoder = rtit.Decoder(code)
    trace = SYNC + results(2)

    def targets() -> set[int]:
        decoder.run(trace)
        return {int(to) for to in decoder.edges().target}

    assert targets() == {0x1000, 0x1004}
    code.add(0x1000, bytes.fromhex("7400"))
    assert targets() == {0x1000, 0x1004}
    decoder.invalidate(0x1001, 1)
    assert targets() == {0x1000, 0x1002}
    code.add(0x1000, bytes.fromhex("7401"))
    decoder.invalidate(0x9000, 100)
    assert targets() == {0x1000, 0x1002}
    decoder.invalidate()
    assert targets() == {0x1000, 0x1003}
    with pytest.raises(UsageError, match="64 bits"):
        decoder.invalidate(-1)


def test_change_without_invalidate_affects_one_decoder() -> None:
    """The next decoder reads the current code."""
    code, trace = image(), SYNC + results(2)
    decoder = rtit.Decoder(code)
    decoder.run(trace)
    code.add(0x1000, bytes.fromhex("7400"))
    decoder.invalidate(0x9000, 100)
    decoder.run(trace)
    del decoder
    other = rtit.Decoder(code)
    other.run(trace)
    assert {int(to) for to in other.edges().target} == {0x1000, 0x1002}


def test_state_of_last_trace_is_reset() -> None:
    """State of the first trace does not affect the second, which does not set it."""
    # 1000: 64-bit `je`, 32-bit `inc eax; je`; 2000 jmp rax; 3000 is written twice, the `je` late
    code = rtit.Image().add(0x1000, bytes.fromhex("407400 ebfb")).add(0x2000, b"\xff\xe0")
    code.add(0x3000, bytes.fromhex("9090")).add(0x3000, bytes.fromhex("7400 ebfc"))
    other = rtit.Image().add(0x1000, bytes.fromhex("9090 7400 ebfc")).add(0x2000, b"\x90" * 9)
    fup = encode("FUP", ip_bytes=6, payload=0x1000)
    psb_plus = encode("PSB") + fup + encode("PSBEND")
    narrow = encode("PSB") + bytes([0x99, 2]) + fup + encode("PSBEND")
    waiting = psb_plus + encode("TIP", ip_bytes=6, payload=0x2000) + results(1)
    runs = [
        (narrow + results(1), None),
        (psb_plus + results(1), None),
        (head(pip(0x5000)) + results(1), None),
        (results(1), Start(0x1000)),
        (psb_plus + results(1), None),
        (head(pip(0x5000)) + results(1), None),
        (psb_plus + results(1), None),
        (encode("PSB") + fup + encode("PSBEND") + waiting, None),
        (results(1, taken=False), Start(0x1000)),
        (results(2), Start(0x3000)),
        (narrow, None),
        (results(2), Start(0x1000, last_ip=7)),
    ]
    decoder = rtit.Decoder(code, spaces={0x5000: other})
    for data, start in runs:
        fresh = rtit.Decoder(code, spaces={0x5000: other})
        assert decoder.run(data, start=start) == fresh.run(data, start=start)
        assert list(decoder.edges()) == list(fresh.edges())
        assert list(decoder.ledger()) == list(fresh.ledger())
    for ip in (0x1000, 0x3000):
        decoder.run(head(pip(0x5000)) + results(1))
        decoder.run(results(1), start=Start(ip))
        assert sources(decoder.edges()) == {ip}
    (stream,) = rtit.decode(results(1), code, start=Start(0x3000)).streams
    assert sources(stream.edges()) == {0x3000}


class BrokenError(Exception):
    """Raised by the page callback."""


class Pages:
    """Page callback that returns the code or raises."""

    def __init__(self, page: bytes | None) -> None:
        self.page = page
        self.asked: list[int] = []

    def __call__(self, address: int) -> bytes | None:
        self.asked.append(address)
        if self.page is None:
            raise BrokenError(hex(address))
        return self.page if address == 0x1000 else None


def test_page_callback_is_called_once_for_each_page() -> None:
    pages = Pages(CODE)
    decoder = rtit.Decoder(rtit.Image(missing=pages))
    for _ in range(3):
        assert decoder.run(SYNC + results(3)).complete
    assert pages.asked == [0x1000]
    pages.page = bytes.fromhex("7400 90 90 90 ebf9")
    decoder.invalidate(0x1000, 1)
    assert decoder.run(SYNC + results(1)).complete
    assert pages.asked == [0x1000, 0x1000]
    assert set(decoder.edges().target.tolist()) == {0x1002}


def pip(cr3: int, nr: int = 0) -> bytes:
    return encode("PIP", cr3=cr3, nr=nr)


def head(*status: bytes) -> bytes:
    fup = encode("FUP", ip_bytes=6, payload=0x1000)
    return encode("PSB") + bytes([0x99, 1]) + b"".join(status) + fup + encode("PSBEND")


def test_page_callback_error_propagates_from_any_space() -> None:
    main, other = Pages(CODE), Pages(None)
    spaces = {0x5000: rtit.Image(missing=other)}
    decoder = rtit.Decoder(rtit.Image(missing=main), spaces=spaces)
    bitmap = bytearray(b"\x07" * 64)
    with pytest.raises(BrokenError, match="0x1000"):
        decoder.run(head(pip(0x5000)) + results(3), bitmap)
    assert bitmap == b"\x07" * 64
    assert decoder.run(head() + results(3), bitmap).complete
    with pytest.raises(BrokenError):
        decoder.run(head(pip(0x5000)) + results(3))
    other.page = CODE
    assert decoder.run(head(pip(0x5000)) + results(3)).complete
    other.page = None
    spaces[0x5000].forget()
    (stream,) = rtit.decode(head(pip(0x5000)) + results(3), spaces=spaces).streams
    with pytest.raises(BrokenError):
        stream.counts()


def sources(edges: Iterable[rtit.trace.Edge]) -> set[int]:
    return {edge.source for edge in edges}


def test_each_space_key_selects_its_code() -> None:
    """`je` is at 1000, 1001, 1002 or 1003: each space has 0 to 3 NOPs before it."""

    def shifted(count: int) -> rtit.Image:
        return rtit.Image().add(0x1000, b"\x90" * count + bytes.fromhex("7400 90"))

    spaces: dict[rtit.trace.SpaceKey, rtit.Image] = {
        0x5000: shifted(1),
        (0x5000, 1): shifted(2),
        (0x5000, 1, 0x7000): shifted(3),
    }
    streams = {
        0: head(),
        1: head(pip(0x5000)),
        2: head(pip(0x5000, 1)),
        3: head(encode("VMCS", pointer=0x7000), pip(0x5000, 1)),
    }
    decoder = rtit.Decoder(shifted(0), spaces=spaces)
    for _ in range(2):
        for number, begin in streams.items():
            decoder.run(begin + results(1))
            assert sources(decoder.edges()) == {0x1000 + number}
            trace = rtit.decode(begin + results(1), shifted(0), spaces=spaces)
            assert sources(trace.streams[0].edges()) == {0x1000 + number}
    spaces[0x5000].add(0x1000, bytes.fromhex("7400"))
    decoder.invalidate(0x1000, 2)
    decoder.run(streams[1] + results(1))
    assert sources(decoder.edges()) == {0x1000}


def test_second_thread_gets_concurrent_use_error() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(_: int) -> bytes:
        inside.set()
        assert go_on.wait(300)
        return CODE

    decoder = rtit.Decoder(rtit.Image(missing=slow))
    thread = threading.Thread(target=decoder.run, args=(SYNC + results(1),))
    thread.start()
    assert inside.wait(300)
    with pytest.raises(ConcurrentUseError, match="open one in each thread, or use a lock"):
        decoder.run(SYNC)
    go_on.set()
    thread.join()
    assert decoder.run(SYNC + results(1)).complete


def test_max_instructions_bounds_memory() -> None:
    """A decoder with a very small cache gives the same results."""
    decoder = rtit.Decoder(image(), max_instructions=1)
    for _ in range(3):
        assert decoder.run(SYNC + results(50) + SYNC + results(10)).branches == 60
