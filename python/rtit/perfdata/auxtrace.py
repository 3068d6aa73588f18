"""The AUX data of a file: how it was made, and where its pieces are.

AUXTRACE_INFO's private words for Intel PT are those of perf's intel_pt_info_fill; older files have
fewer.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, fields
from typing import NamedTuple

from .attr import config_mask
from .clock import TimeConversion
from .cursor import Cursor, text

INTEL_PT = 1
"""AUXTRACE_INFO.kind of Intel PT."""

_WORDS = 17
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class IntelPtInfo:
    """AUXTRACE_INFO of Intel PT: 17 words, the address filter, and one word more in newer files.

    The `_bit` fields are masks of attr.config. `tsc_ctc_n`/`tsc_ctc_d` is EBX/EAX of CPUID.15H, TSC
    ticks per crystal tick; 0 if unknown. `mtc_freq_bits` is the mask of mtc_period.
    `have_sched_switch`: 0 none, 1 samples of sched:sched_switch, 2 SWITCH, 3 SWITCH_CPU_WIDE.
    """

    pmu_type: int = 0
    time_shift: int = 0
    time_mult: int = 0
    time_zero: int = 0
    cap_user_time_zero: int = 0
    tsc_bit: int = 0
    noretcomp_bit: int = 0
    have_sched_switch: int = 0
    snapshot_mode: int = 0
    per_cpu_mmaps: int = 0
    mtc_bit: int = 0
    mtc_freq_bits: int = 0
    tsc_ctc_n: int = 0
    tsc_ctc_d: int = 0
    cyc_bit: int = 0
    max_nonturbo_ratio: int = 0
    filter: str | None = None
    cap_event_trace: int = 0

    @classmethod
    def of_recording(
        cls,
        *,
        pmu_type: int,
        time: TimeConversion,
        tsc_ctc: tuple[int, int],
        max_nonturbo_ratio: int,
        mtc_freq_bits: int,
        filter: str | None,  # noqa: A002 - perf's name for it
        cap_event_trace: bool,
        snapshot: bool = False,
        have_sched_switch: int = 0,
    ) -> IntelPtInfo:
        """What our own recordings say: one buffer a thread, or a CPU if there are switches;
        everything decodable in time.
        """
        return cls(
            pmu_type=pmu_type,
            time_shift=time.shift,
            time_mult=time.mult,
            time_zero=time.zero,
            cap_user_time_zero=1,
            tsc_bit=config_mask("tsc"),
            noretcomp_bit=config_mask("noretcomp"),
            have_sched_switch=have_sched_switch,
            snapshot_mode=int(snapshot),
            per_cpu_mmaps=int(have_sched_switch != 0),
            mtc_bit=config_mask("mtc"),
            mtc_freq_bits=mtc_freq_bits,
            tsc_ctc_n=tsc_ctc[0],
            tsc_ctc_d=tsc_ctc[1],
            cyc_bit=config_mask("cyc"),
            max_nonturbo_ratio=max_nonturbo_ratio,
            filter=filter or None,
            cap_event_trace=int(cap_event_trace),
        )

    @classmethod
    def decode(cls, at: Cursor) -> IntelPtInfo:
        """Read the private words. Raises PerfDataError where the filter does not fit the record."""
        words = [at.unpack(_U64)[0] for _ in range(min(_WORDS, at.left // 8))]
        filter_size = words.pop() if len(words) == _WORDS else 0
        expression = None
        if filter_size:
            if filter_size >= at.left:
                raise at.fail(f"the filter does not fit {at.left} bytes", filter_size)
            expression = text(at.take(_padded(filter_size))[:filter_size])
        names = [field.name for field in fields(cls)]
        values: dict[str, int] = dict(zip(names, words, strict=False))
        more = at.unpack(_U64)[0] if at.left >= 8 else 0
        return cls(**values, filter=expression, cap_event_trace=more)

    def encode(self) -> bytes:
        """The private words."""
        expression = os.fsencode(self.filter or "")
        values = [getattr(self, field.name) for field in fields(self)][: _WORDS - 1]
        out = struct.pack(f"<{_WORDS}Q", *values, len(expression))
        if expression:
            out += expression.ljust(_padded(len(expression)), b"\0")
        return out + _U64.pack(self.cap_event_trace)

    @property
    def time_conversion(self) -> TimeConversion | None:
        """TSC <-> perf clock; None if the machine did not offer it or the numbers cannot be
        inverted.
        """
        if not self.cap_user_time_zero:
            return None
        try:
            return TimeConversion(self.time_shift, self.time_mult, self.time_zero)
        except ValueError:
            return None

    def mtc_period(self, config: int) -> int:
        """MTCFreq that attr.config selects, 0..15; 0 where the mask is empty (no MTC)."""
        mask = self.mtc_freq_bits
        return (config & mask) // (mask & -mask) if mask else 0


def _padded(size: int) -> int:
    """The bytes that a filter of `size` characters takes: with a NUL, in words."""
    return (size + 8) & ~7


class Queue(NamedTuple):
    """Whose trace a stream is: a CPU's (tid -1) or a thread's (cpu -1)."""

    cpu: int
    tid: int


@dataclass(frozen=True, slots=True)
class Piece:
    """One AUXTRACE record's data.

    `data` views the file, `file_offset` is its place there, or in another `part` of the recording
    than the first (see `parts`); `aux_offset` its place in the stream of
    its buffer, in bytes. Pieces follow each other in the stream, but for up to 7 bytes of padding
    (PT's PAD is 0) at the end of each, and, in snapshot mode, for stretches that two pieces both
    hold. `reference` is the TSC when it was written.
    """

    file_offset: int
    aux_offset: int
    reference: int
    idx: int
    tid: int
    cpu: int
    data: memoryview
    part: int = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)
