"""Decoding raw PT: packets of one logical processor, without a perf.data around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rtit.image import Image
from rtit.trace.origin import RawPt
from rtit.trace.settings import NO_SCALING, Cpu, Settings, Start, checked, cpu_named, few
from rtit.trace.source import Source, source_of
from rtit.trace.spaces import Spaces
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
