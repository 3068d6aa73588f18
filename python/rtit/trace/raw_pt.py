"""Decoding raw PT: packets of one logical processor, without a perf.data around them.

One short trace after the other over the same code: what fuzzers need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rtit.errors import UsageError
from rtit.image import Image
from rtit.trace.recording.byte_source import Source, source_of
from rtit.trace.recording.info import RawPt
from rtit.trace.recording.settings import NO_SCALING, Cpu, Settings, Start, checked, cpu_named, few
from rtit.trace.tables.counts import Counts, EdgeTotals
from rtit.trace.tables.ledger import Ledger, account
from rtit.trace.threads.address_spaces import Spaces, native_spaces
from rtit.trace.trace import Trace

if TYPE_CHECKING:
    from typing_extensions import Buffer


def decode(
    data: Buffer | Iterable[Buffer] | Source,
    image: Image | None = None,
    *,
    cpu: Cpu | str | None = None,
    mtc_freq: int = 0,
    nom_freq: int = 0,
    cpuid_15: tuple[int, int] = (0, 0),
    start_time: int = 0,
    guest_tsc: tuple[int, int] = NO_SCALING,
    start: Start | None = None,
    ranges: Sequence[tuple[int, int]] = (),
    no_tnt: bool = False,
    no_retcomp: bool = False,
    spaces: Spaces | None = None,
    threads: int = 0,
    places: int = 0,
    title: str = "PT",
) -> Trace:
    """A trace of raw PT, the packets of one logical processor, and of the code that ran; without
    an image it has packets alone.

    `data` is anything with a buffer of bytes, or an iterable of such: parts of one stream, taken
    one at a time as decoding comes to them; or a `Source`, which says where they come from. What
    can be iterated once alone (a live stream) can be decoded once alone. A buffer that changes
    meanwhile gives some of its contents at some time.

    `cpu`: DisplayFamily, DisplayModel and stepping, also as "6/94/3"; without it the errata that
    are safe for all processors are reckoned with. `mtc_freq` is IA32_RTIT_CTL.MTCFreq, 0..15;
    `nom_freq` MSR_PLATFORM_INFO[15:8], 0..255; `cpuid_15` EAX and EBX of CPUID.15H: without them
    MTCs and CYCs give no time. `start_time`: any TSC value near the beginning, which completes the
    56 bits of TSC packets. `guest_tsc`: TSC offset and TSC multiplier (in units of 2**-48) of the
    guest's VMCS: times are the host's. The stream is read from its first PSB on, or from its first
    byte if `start` says how things are there. `ranges`: IP filter ranges, each as first and last
    address, at most 4; `no_tnt`, `no_retcomp`: made with DisTNT, DisRETC. `spaces`: the code
    of other address spaces, by CR3, (CR3, NR) or (CR3, NR, VMCS pointer); `image` is for whatever
    has no key, and as long as no PIP has come. `threads`: how many may decode it, 1 to 255, where
    that is possible; 0: one for results in order, for others as many as the machine runs at once,
    8 at most. Results are the same, and pages that an image is to be asked for are asked for by one
    thread. `places`: how many runs and how many edges have counts of their own where they are added
    up, the first in the order of their addresses; 0: 2**20 and one more for each 1,024 bytes, 2**22
    at most, and where it is not known how many bytes will come. `title` is how errors call it.

    Raises UsageError for a setting out of range. What is wrong in the stream is no exception: its
    `ledger` has it.
    """
    eax, ebx = cpuid_15
    settings = Settings(
        mtc_freq=mtc_freq,
        tsc_ctc=(ebx, eax),
        max_nonturbo_ratio=nom_freq,
        start_time=start_time,
        guest_tsc=guest_tsc,
        no_tnt=no_tnt,
        no_retcomp=no_retcomp,
        cpu=cpu_named(cpu) if isinstance(cpu, str) else cpu,
        ranges=few(ranges),
        start=start,
        threads=threads,
        places=places,
    )
    whole = Image() if image is None else image
    return Trace.of(RawPt(source_of(data), whole, checked(settings), title, spaces))


_FOREVER = (1 << 64) - 1


class Run(NamedTuple):
    """How much of one trace was followed.

    `size` is its bytes: so many of them `exact`, `resumed` (what ran is right, and something before
    is missing) and `lost`, with `errors`; `truncated`: it ends within a packet. `instructions`:
    that ran; `branches`: that a packet decided.
    """

    size: int
    exact: int
    resumed: int
    lost: int
    errors: int
    truncated: bool
    instructions: int
    branches: int

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self.exact == self.size > 0 and not self.errors


class Decoder:
    """Decodes one trace after the other, each from nothing but what it has learned of the code:
    that is kept, so that the next trace of the same program takes a fraction of the time. What a
    trace gives never depends on those before it. For one thread at a time; others can have
    decoders of their own.

    `image`, `cpu`, `ranges`, `no_tnt`, `no_retcomp` and `spaces` are those of `rtit.decode`, and so
    are `mtc_freq`, `nom_freq`, `cpuid_15`, `start_time` and `guest_tsc`: with these `counts` tells
    of frequency and time.
    `index` says at which byte of a bitmap the edge from a branch at `f` to `t` is counted, in a map
    of 2**n bytes:

    * "afl": `h(t) ^ h(f) >> 1` with `h(a) = (a >> 4 ^ a << 8) % 2**n`, as AFL's QEMU mode has it
      of two blocks;
    * "libxdc": the lowest 32 bits of `m(t) ^ m(f) >> 1`, modulo 2**n, with
      `m(a) = (a ^ a >> 31) * 0x7fb5d329728ea185 % 2**64`.

    `branches` says of which edges: "decided", all but direct jumps and calls, which follow from the
    others; or "conditional", conditional branches alone, taken or not (libxdc's). As much is kept
    of the code as `most_instructions` usually take, 32 bytes each; then it is learned anew. Raises
    UsageError.
    """

    def __init__(
        self,
        image: Image,
        *,
        cpu: Cpu | str | None = None,
        mtc_freq: int = 0,
        nom_freq: int = 0,
        cpuid_15: tuple[int, int] = (0, 0),
        start_time: int = 0,
        guest_tsc: tuple[int, int] = NO_SCALING,
        ranges: Sequence[tuple[int, int]] = (),
        no_tnt: bool = False,
        no_retcomp: bool = False,
        spaces: Spaces | None = None,
        index: str = "afl",
        branches: str = "decided",
        most_instructions: int = 1 << 22,
    ) -> None:
        from rtit import _core

        eax, ebx = cpuid_15
        settings = checked(
            Settings(
                mtc_freq=mtc_freq,
                tsc_ctc=(ebx, eax),
                max_nonturbo_ratio=nom_freq,
                start_time=start_time,
                guest_tsc=guest_tsc,
                cpu=cpu_named(cpu) if isinstance(cpu, str) else cpu,
                ranges=few(ranges),
                no_tnt=no_tnt,
                no_retcomp=no_retcomp,
            )
        )
        self._index = _number("index", index, _core.Decoder.INDEXES)
        self._branches = _number("branches", branches, _core.Decoder.BRANCHES)
        if not 0 < most_instructions <= 1 << 32:
            raise UsageError(f"most_instructions is {most_instructions}: it is 1 to 2**32")
        self._image = image
        self._spaces = dict(spaces or {})
        self._native = _core.Decoder(
            image.native,
            spaces=native_spaces(self._spaces),
            mtc_freq=mtc_freq,
            tsc_ctc=settings.tsc_ctc,
            max_nonturbo_ratio=nom_freq,
            start_time=start_time,
            guest_tsc=guest_tsc,
            no_tnt=no_tnt,
            no_retcomp=no_retcomp,
            cpu=settings.cpu,
            ranges=settings.ranges,
            most=most_instructions,
        )

    def run(
        self,
        data: Buffer,
        bitmap: Buffer | None = None,
        *,
        add: bool = False,
        classes: bool = False,
        start: Start | None = None,
    ) -> Run:
        """Decode a trace: any buffer of bytes, read from its first PSB on, or from its first byte
        if `start` says how things are there.

        `bitmap`: a writable buffer of a power of two of bytes (bytearray, NumPy array, shared
        memory), at most 2**32. It then has how often each edge was taken; counts of edges that
        share a byte are added, and stay at 255. With `add` they are added to what is there, for a
        trace in several buffers; with `classes` each is AFL's class of the count, one bit: 1, 2, 3,
        4..7, 8..15, 16..31, 32..127, 128 and more.

        What is wrong in the trace is no exception. Raises UsageError for `add` with `classes`, and
        for a buffer that cannot be used; and what those raise who are asked for pages. The bitmap
        is then as it was.
        """
        if add and classes:
            raise UsageError("counts cannot be added to classes: make classes of the sum")
        if start is not None:
            checked(Settings(start=start))
        found = self._native.run(
            _octets("the trace", data),
            None if bitmap is None else _map(bitmap),
            index=self._index,
            branches=self._branches,
            add=add,
            classes=classes,
            start=None if start is None else (start.ip, start.bits, start.last_ip),
        )
        return Run(*found)

    def edges(self) -> EdgeTotals:
        """Every edge of the last trace, of all kinds, as `Stream.edges` has them."""
        import numpy as np

        source, target, kind, count = map(np.asarray, self._native.edges())
        return EdgeTotals(source, target, kind, count)

    def ledger(self) -> Ledger:
        """The account of every byte of the last trace."""
        return Ledger.of(account(self._native))

    def counts(self) -> Counts:
        """Totals of the last trace."""
        return Counts.of(self._native.counts())

    def forget(self, address: int = 0, size: int = _FOREVER) -> None:
        """The code has changed in `size` bytes from `address` on, in all spaces: what the images
        have now holds from the next trace on, and pages there are asked for again. What is not
        told so may still be seen as it was.
        """
        if not 0 <= address <= address + size <= _FOREVER:
            raise UsageError(f"{size:,} bytes at {address:#x}: addresses have 64 bits")
        for image in (self._image, *self._spaces.values()):
            image.forget(address, size)
        spaces = native_spaces(self._spaces)
        self._native.forget(self._image.native, spaces, address, address + size)


def _octets(what: str, buffer: Buffer) -> memoryview:
    try:
        view = memoryview(buffer)
        return view if view.format == "B" and view.ndim == 1 else view.cast("B")
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} is no buffer of bytes in one piece: {error}") from error


def _map(bitmap: Buffer) -> memoryview:
    view = _octets("the bitmap", bitmap)
    size = view.nbytes
    if view.readonly or not view.c_contiguous:
        raise UsageError("the bitmap cannot be written, or is not in one piece")
    if not 0 < size <= 1 << 32 or size & (size - 1):
        raise UsageError(f"the bitmap has {size:,} bytes: it is a power of two, 2**32 at most")
    return view


def _number(what: str, name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise UsageError(f"{what} {name!r}: it is one of {', '.join(names)}")
    return list(names).index(name)
