"""Decoding of raw PT: the packets of one logical processor, without a perf.data file.

* `decode` makes a trace of packets and code. `RawTrace` has the interface of `Trace`.
* `Decoder` decodes many short traces of the same code, as fuzzers do. It keeps what it learned of
  the code between traces; the results never depend on earlier traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from rtit.errors import UnsupportedError, UsageError
from rtit.image import Image, Images
from rtit.perfdata import PerfData, TimeConversion
from rtit.sideband import Process, ProcessExit
from rtit.trace.recording.byte_source import ByteSource, as_byte_source
from rtit.trace.recording.decoder_settings import (
    NO_SCALING,
    Cpu,
    Settings,
    Start,
    check_settings,
    limit_filter_ranges,
    parse_cpu,
)
from rtit.trace.stream import Stream
from rtit.trace.tables.counts import Counts, EdgeTotals
from rtit.trace.tables.coverage_ledger import Ledger, native_ledger_rows
from rtit.trace.threads.address_spaces import Spaces, native_spaces, space_pid
from rtit.trace.trace import Trace

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rtit.image import Symbols
    from rtit.image.guest_processes import GuestProcess

_NO_PROCESS = -1
"""The process id of a raw stream."""


def decode(
    data: Buffer | Iterable[Buffer] | ByteSource,
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
    jobs: int = 0,
    max_counters: int = 0,
    title: str = "PT",
) -> RawTrace:
    """Return the trace of raw PT (the packets of one logical processor) and of the code that ran.

    Parameters:

    * `data`: a bytes-like object, an iterable of such chunks, or a `ByteSource`. A live stream (an
      iterator) can be decoded once. A buffer that changes during decoding yields some of its
      contents.
    * `image`: the code; without it only packets are available.
    * `cpu`: DisplayFamily, DisplayModel and stepping, or text like "6/94/3". It selects errata;
      without it the decoder works around those that are safe for all processors.
    * `mtc_freq`: IA32_RTIT_CTL.MTCFreq, 0 to 15. `nom_freq`: MSR_PLATFORM_INFO[15:8], 0 to 255.
      `cpuid_15`: EAX and EBX of CPUID.15H. Without these MTCs and CYCs give no time.
    * `start_time`: any TSC value near the beginning. It completes the 56 bits of TSC packets.
    * `guest_tsc`: TSC offset and multiplier (units of 2**-48) of the guest's VMCS. Times are then
      the host's.
    * `start`: the state at the first byte. Without it decoding starts at the first PSB.
    * `ranges`: IP filter ranges, first and last address each, at most 4.
    * `no_tnt`, `no_retcomp`: recorded with DisTNT, DisRETC.
    * `spaces`: code of other address spaces, by CR3, (CR3, NR) or (CR3, NR, VMCS pointer). `image`
      is used for all other keys, and before the first PIP.
    * `jobs`: decoder threads, 1 to 255. 0: one for ordered results, otherwise one for each CPU, at
      most 8. The results are the same; one thread makes all requests to the image.
    * `max_counters`: how many distinct runs, and how many distinct edges, are counted separately,
      the first in order of address. 0: 2**20, and one more for each 1,024 bytes, at most 2**22;
      2**22 if the size is unknown.
    * `title`: name of the trace in errors.

    Raises UsageError for a setting out of range. Errors in the stream raise nothing: the stream's
    `ledger` has them.
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
        cpu=parse_cpu(cpu) if isinstance(cpu, str) else cpu,
        ranges=limit_filter_ranges(ranges),
        start=start,
        jobs=jobs,
        max_counters=max_counters,
    )
    source = as_byte_source(data)
    return RawTrace(source, image or Image(), check_settings(settings), title, spaces)


class RawTrace(Trace):
    """A trace of raw PT. It has one stream, and nothing that only a perf.data file contains."""

    is_raw = True
    path = ""
    command_line: list[str] = []  # noqa: RUF012
    facts: dict[str, str] = {}  # noqa: RUF012
    incomplete: str | None = None
    is_snapshot = False
    filter: str | None = None
    clock: TimeConversion | None = None
    comms: dict[int, str] = {}  # noqa: RUF012
    guest_comms: dict[tuple[int, int], str] = {}  # noqa: RUF012
    guest_processes: Sequence[GuestProcess] = ()
    endings: list[ProcessExit] = []  # noqa: RUF012
    traced_instructions: dict[int, int] = {}  # noqa: RUF012
    processes: list[Process] = []  # noqa: RUF012
    images = Images()
    _is_closed = False
    _buffer_count = 1

    def __init__(
        self,
        source: ByteSource,
        image: Image,
        settings: Settings,
        title: str,
        spaces: Spaces | None = None,
    ) -> None:
        self.path = title
        self._source, self._settings, self._spaces = source, settings, spaces
        self.images = Images()
        self.images.set_image(_NO_PROCESS, image)
        for index, each in enumerate((spaces or {}).values()):
            self.images.set_image(space_pid(index), each)

    def close(self) -> None:
        """Do nothing: no file is open."""

    @property
    def data(self) -> PerfData:
        """Raises UnsupportedError."""
        raise UnsupportedError(f"{self.path} is raw PT: there is no perf.data around it")

    @property
    def _size(self) -> int:
        return self._source.size

    @cached_property
    def max_counters(self) -> int:
        """The number of distinct runs, and of distinct edges, that are counted separately."""
        (stream,) = self.streams
        return stream.max_counters

    @cached_property
    def symbols(self) -> Symbols:
        """The names of addresses."""
        from rtit.image import Symbols

        return Symbols(self.images)

    @cached_property
    def streams(self) -> list[Stream]:
        """The only stream."""
        image = self.images.image(_NO_PROCESS)
        return [
            Stream(
                self._source,
                image,
                self._settings,
                images=self.images,
                symbols=self.symbols,
                spaces=self._spaces,
            )
        ]


_ADDRESS_LIMIT = (1 << 64) - 1


class DecodeResult(NamedTuple):
    """How much of one trace was decoded.

    Of `size` bytes, `exact`, `resumed` (correct, but something before is missing) and `lost` bytes
    have that status; `errors` is the number of errors. `truncated`: the trace ends within a packet.
    `instructions` that ran; `branches` that a packet decided.
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
        """Whether all of the trace was decoded."""
        return self.exact == self.size > 0 and not self.errors


class Decoder:
    """Decodes many short traces of the same code. It keeps what it learned of the code, so that the
    next trace takes a fraction of the time. For one thread at a time; each thread can have its own.

    `image`, `cpu`, `ranges`, `no_tnt`, `no_retcomp`, `spaces`, `mtc_freq`, `nom_freq`, `cpuid_15`,
    `start_time` and `guest_tsc` are those of `rtit.decode`; `counts` reports frequency and time if
    the last five are given.

    `index` is the hash by which an edge, from a branch at `f` to `t`, selects a byte of a bitmap of
    2**n bytes:

    * "afl": `h(t) ^ h(f) >> 1` with `h(a) = (a >> 4 ^ a << 8) % 2**n`, like AFL's QEMU mode;
    * "libxdc": the lowest 32 bits of `m(t) ^ m(f) >> 1`, modulo 2**n, with
      `m(a) = (a ^ a >> 31) * 0x7fb5d329728ea185 % 2**64`.

    `branches` selects the edges: "decided" excludes direct jumps and calls, which follow from the
    others; "conditional" has conditional branches only, taken or not, like libxdc.

    `max_instructions` limits the code cache, by 32 bytes each; beyond it the cache is cleared.
    Raises UsageError.
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
        max_instructions: int = 1 << 22,
    ) -> None:
        from rtit import _core

        eax, ebx = cpuid_15
        settings = check_settings(
            Settings(
                mtc_freq=mtc_freq,
                tsc_ctc=(ebx, eax),
                max_nonturbo_ratio=nom_freq,
                start_time=start_time,
                guest_tsc=guest_tsc,
                cpu=parse_cpu(cpu) if isinstance(cpu, str) else cpu,
                ranges=limit_filter_ranges(ranges),
                no_tnt=no_tnt,
                no_retcomp=no_retcomp,
            )
        )
        self._index = _index_of_choice("index", index, _core.ReusableDecoder.INDEXES)
        self._branches = _index_of_choice("branches", branches, _core.ReusableDecoder.BRANCHES)
        if not 0 < max_instructions <= 1 << 32:
            raise UsageError(f"max_instructions is {max_instructions}: it must be 1 to 2**32")
        self._image = image
        self._spaces = dict(spaces or {})
        self._native = _core.ReusableDecoder(
            image.native,
            spaces=native_spaces(self._spaces),
            max_instructions=max_instructions,
            **settings.native(),
        )

    def run(
        self,
        data: Buffer,
        bitmap: Buffer | None = None,
        *,
        add: bool = False,
        classes: bool = False,
        start: Start | None = None,
    ) -> DecodeResult:
        """Decode a trace: a bytes-like object, from its first PSB on, or from its first byte with
        the state `start`.

        `bitmap`: a writable buffer (bytearray, NumPy array, shared memory) of a power of two of
        bytes, at most 2**32. It receives the count of each edge; counts of edges with the same
        index are added, and saturate at 255. `add`: add to the contents, for a trace in several
        buffers. `classes`: write AFL's class of each count, one bit: 1, 2, 3, 4..7, 8..15, 16..31,
        32..127, 128 and more.

        Errors in the trace raise nothing. Raises UsageError for `add` with `classes` and for an
        unusable buffer, and any error of the image's page callback; the bitmap is then unchanged.
        """
        if add and classes:
            raise UsageError("add and classes exclude each other: compute classes of the sum")
        if start is not None:
            check_settings(Settings(start=start))
        result = self._native.run(
            _byte_view("the trace", data),
            None if bitmap is None else _bitmap_view(bitmap),
            index=self._index,
            branches=self._branches,
            add=add,
            classes=classes,
            start=None if start is None else (start.ip, start.bits, start.last_ip),
        )
        return DecodeResult(**result)

    def edges(self) -> EdgeTotals:
        """Return all edges of the last trace, as `Stream.edges`."""
        import numpy as np

        return EdgeTotals(*map(np.asarray, self._native.edges().values()))

    def ledger(self) -> Ledger:
        """Return the coverage ledger of the last trace."""
        return Ledger.from_rows(native_ledger_rows(self._native))

    def counts(self) -> Counts:
        """Return totals of the last trace."""
        return Counts(**self._native.counts())

    def invalidate(self, address: int = 0, size: int = _ADDRESS_LIMIT) -> None:
        """Drop cached code of `size` bytes from `address` on, in all spaces, after it changed.

        The next trace uses the images as they are now, and requests missing pages again.
        """
        if not 0 <= address <= address + size <= _ADDRESS_LIMIT:
            raise UsageError(f"{size:,} bytes at {address:#x}: addresses have 64 bits")
        for image in (self._image, *self._spaces.values()):
            image.forget(address, size)
        spaces = native_spaces(self._spaces)
        self._native.invalidate(self._image.native, spaces, address, address + size)


def _byte_view(name: str, buffer: Buffer) -> memoryview:
    try:
        view = memoryview(buffer)
        return view if view.format == "B" and view.ndim == 1 else view.cast("B")
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} is no contiguous buffer of bytes: {error}") from error


def _bitmap_view(bitmap: Buffer) -> memoryview:
    view = _byte_view("the bitmap", bitmap)
    size = view.nbytes
    if view.readonly or not view.c_contiguous:
        raise UsageError("the bitmap is read-only or not contiguous")
    if not 0 < size <= 1 << 32 or size & (size - 1):
        raise UsageError(f"the bitmap has {size:,} bytes: it is a power of two, 2**32 at most")
    return view


def _index_of_choice(name: str, value: str, values: Sequence[str]) -> int:
    if value not in values:
        raise UsageError(f"{name} {value!r}: it must be one of {', '.join(values)}")
    return list(values).index(value)
