"""Trace output: where the bytes of the packet stream go (section 33.2.7).

The rules, in one place:

* Scheme: FabricEn selects the transport; else ToPA selects tables; else the single range.
* A region is filled when its last byte has been written. Then, in this order: STOP stops output
  (OutputOffset stays at the region's size); INT gives a PMI; the pointer moves to the next entry at
  offset 0.
* The pointer follows an END entry to entry 0 of the table it names, and wraps to entry 0 of its own
  table after the entry at offset 0FFFFF8H. With `follow` "eager" it does so as soon as the region
  is filled, so that the MSRs never show an END entry; with "lazy" when the next byte is to be
  written.
* An entry is read and checked when it becomes current, not earlier (`cache` "entry"; "table" reads
  the 4 KB of the table around it with it, "none" reads it again for each write). A bad one is an
  operational error: output ends and the pointer stays at the entry. The single range is checked
  whole at enable.
* With CPUID.(14H,0):ECX[1] = 0 a table is one region and an END entry back to the table, and a PMI
  comes `pmi_margin` bytes before the region is filled, at once if the pointer starts past that.
* A table entry in restricted memory is an operational error. A region that overlaps it loses the
  bytes stored there (`smrr_policy` "drop") or is an operational error when the pointer gets there
  ("error").

The unit sets STATUS.Stopped, Error and PendTopaPMI from the results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import unpack
from typing import Literal, NamedTuple

from rtit.registers.file import RegisterFile
from rtit.registers.hexadecimal import hexadecimal_repr
from rtit.registers.msr import CTL, OUTPUT_MASK_PTRS
from rtit.registers.profiles import Profile
from rtit.unit.output.memory import PAGE, Memory
from rtit.unit.output.single_range import SingleRange, single_range_error
from rtit.unit.output.topa import LAST_OFFSET, Entry, entry_error

_LOWER_MASK = OUTPUT_MASK_PTRS["LowerMask"].mask
_INDEX = OUTPUT_MASK_PTRS["MaskOrTableOffset"]
_OFFSET = OUTPUT_MASK_PTRS["OutputOffset"]
_FABRIC = CTL["FabricEn"].mask
_TOPA = CTL["ToPA"].mask
_NOTHING = -1
"""A `limit` below every offset: each write takes the slow path."""


class OutputResult(NamedTuple):
    """What an enable or a write did: `lost` bytes at the end of the data were not accepted.

    `stopped`: a STOP region is filled. `error`: an operational error, in words. `pmi`: a ToPA PMI
    is due (with `stopped`, the stop comes first).
    """

    lost: int = 0
    stopped: bool = False
    error: str | None = None
    pmi: bool = False


OK = OutputResult()
"""All bytes were accepted and nothing happened: what nearly every write returns (use `is`)."""


class Scheme(IntEnum):
    """The output scheme in use (section 33.2.7)."""

    NONE = 0
    SINGLE_RANGE = 1
    TOPA = 2
    FABRIC = 3


@dataclass(slots=True)
class OutputState:
    """The output's state: plain, comparable.

    `table_base` is OUTPUT_BASE, `table_offset` the current entry's offset in bytes (ToPA), `mask`
    the single range's mask. `region_base` and `region_size` describe the current region,
    `output_offset` is where its next byte goes. `limit` is the offset at which something happens
    next (a PMI, restricted memory, the end), `pmi_at` that of the PMI or -1. `entry` is the current
    entry as read. `pending`: the pointer has moved and the entry there is not read yet (lazy).
    `cached`: entries read ahead, from an address on.
    """

    __repr__ = hexadecimal_repr(
        "table_base",
        "table_offset",
        "mask",
        "output_offset",
        "region_base",
        "region_size",
        "limit",
        "cached",
    )

    scheme: Scheme = Scheme.NONE
    enabled: bool = False
    table_base: int = 0
    table_offset: int = 0
    mask: int = _LOWER_MASK
    output_offset: int = 0
    region_base: int = 0
    region_size: int = 0
    limit: int = _NOTHING
    pmi_at: int = -1
    entry: Entry | None = None
    pending: bool = False
    cached: tuple[int, tuple[int, ...]] = (0, ())
    stopped: bool = False
    error: str | None = None


class Output:
    """The trace output of one logical processor.

    `fabric` receives the bytes when FabricEn is set. `follow`, `pmi_margin` (bytes, single-entry
    processors), `smrr_policy` and `cache` are choices that the chapter leaves open.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        profile: Profile,
        fabric: Callable[[bytes], None] | None = None,
        follow: Literal["eager", "lazy"] = "eager",
        pmi_margin: int = 512,
        smrr_policy: Literal["drop", "error"] = "drop",
        cache: Literal["none", "entry", "table"] = "entry",
    ) -> None:
        self.memory = memory
        self.profile = profile
        self.fabric = fabric
        self.follow = follow
        self.pmi_margin = pmi_margin
        self.smrr_policy = smrr_policy
        self.cache = cache
        self.state = OutputState()
        self._page = bytearray()
        self._page_start = 0
        self._page_end = _NOTHING

    def enable(self, registers: RegisterFile) -> OutputResult:
        """TraceEn goes from 0 to 1: load the pointers from the MSRs and check what is current.

        An error here is an operational error: nothing will be written.
        """
        pointers = registers.output_mask_ptrs | _LOWER_MASK
        offset = _OFFSET.get(pointers)
        state = OutputState(enabled=True, table_base=registers.output_base, output_offset=offset)
        self.state = state
        self._page_end = _NOTHING
        if registers.ctl & _FABRIC:
            state.scheme = Scheme.FABRIC
            state.mask = pointers & 0xFFFFFFFF
            return OK
        if registers.ctl & _TOPA:
            state.scheme = Scheme.TOPA
            state.table_offset = _INDEX.get(pointers) << 3
            return self._load()
        state.scheme = Scheme.SINGLE_RANGE
        state.mask = pointers & 0xFFFFFFFF
        error = single_range_error(registers.output_base, state.mask, offset)
        if error:
            return self._fail(error)
        span = SingleRange(registers.output_base, state.mask)
        state.region_base, state.region_size = span.base, span.size
        return self._aim()

    def disable(self) -> None:
        """TraceEn goes to 0: `msrs()` stays, and no byte is accepted until the next enable."""
        self.state.enabled = False
        self._set_limit(_NOTHING)

    def write(self, data: bytes) -> OutputResult:
        """Append bytes to the stream; they may straddle regions and tables.

        After a stop or an error every byte is lost, and the result says so again. RuntimeError if
        output is not enabled.
        """
        state = self.state
        offset = state.output_offset
        end = offset + len(data)
        if end < self._page_end:
            start = self._page_start
            self._page[offset - start : end - start] = data
            state.output_offset = end
            return OK
        if end < state.limit and self.cache != "none":
            self.memory.store(state.region_base + offset, data)
            state.output_offset = end
            if self.memory.observer is None:
                self._open_page()
            return OK
        return self._write_slowly(data)

    def msrs(self) -> tuple[int, int]:
        """IA32_RTIT_OUTPUT_BASE and IA32_RTIT_OUTPUT_MASK_PTRS as they stand, exact at any time."""
        state = self.state
        low = state.mask
        if state.scheme == Scheme.TOPA:
            low = state.table_offset >> 3 << _INDEX.low | _LOWER_MASK
        return state.table_base, state.output_offset << _OFFSET.low | low

    def snapshot(self) -> OutputState:
        """A copy of the state."""
        return replace(self.state)

    def restore(self, state: OutputState) -> None:
        """Go back to a snapshot; memory is not part of it."""
        self.state = replace(state)
        self._page_end = _NOTHING

    def _write_slowly(self, data: bytes) -> OutputResult:
        """`write` when something happens within the data, or nothing can be written at all."""
        state = self.state
        size = len(data)
        if not state.enabled:
            raise RuntimeError("trace output is not enabled")
        if state.stopped or state.error is not None:
            return OutputResult(size, state.stopped, state.error)
        if state.scheme == Scheme.FABRIC:
            if self.fabric is not None:
                self.fabric(data)
            return OK
        done = 0
        pmi = False
        while done < size:
            result = OK
            if state.pending or self._changed():
                result = self._load()
                pmi |= result.pmi
            if result.error is None:
                count = min(size - done, state.limit - state.output_offset)
                part = data[done : done + count]
                self.memory.store(state.region_base + state.output_offset, part)
                state.output_offset += count
                done += count
                if state.output_offset == state.limit:
                    result = self._arrive()
            pmi |= result.pmi
            if result.stopped or result.error is not None:
                return result._replace(lost=size - done, pmi=pmi)
        return OutputResult(pmi=True) if pmi else OK

    def _arrive(self) -> OutputResult:
        """The pointer is at `limit`."""
        state = self.state
        pmi = state.output_offset == state.pmi_at
        if pmi:
            state.pmi_at = -1
        result = self._aim() if state.output_offset < state.region_size else self._fill()
        return result._replace(pmi=True) if pmi else result

    def _fill(self) -> OutputResult:
        """The region is full."""
        state = self.state
        if state.entry is not None and state.entry.stop:
            state.stopped = True
            self._set_limit(_NOTHING)
            return OutputResult(stopped=True)
        state.output_offset = 0
        if state.scheme == Scheme.SINGLE_RANGE:
            return self._aim()
        state.table_offset = 0 if state.table_offset == LAST_OFFSET else state.table_offset + 8
        if self.follow == "lazy":
            state.pending = True
            self._set_limit(_NOTHING)
            return OK
        return self._load()

    def _load(self) -> OutputResult:
        """Make the entry at the table pointer current, through an END entry if need be."""
        state = self.state
        state.pending = False
        while True:
            at = state.table_base + state.table_offset
            if self.memory.first_restricted(at, at + 8) < at + 8:
                return self._fail(f"ToPA entry at {at:#x} is in restricted memory")
            value = self._read(at)
            error = entry_error(
                value,
                state.table_offset >> 3,
                state.table_base,
                maxphyaddr=self.profile.maxphyaddr,
                multi_entry=self.profile.multi_entry,
            )
            if error:
                return self._fail(error)
            entry = Entry.decode(value)
            if not entry.end:
                break
            # Entry 0 of the next table cannot be END, so this comes round once.
            state.table_base, state.table_offset, state.output_offset = entry.base, 0, 0
        state.entry = entry
        state.region_base, state.region_size = entry.base, entry.size
        if state.output_offset >= entry.size:
            offset = state.output_offset
            return self._fail(f"ToPA OutputOffset {offset:#x} is not below {entry.size:#x}")
        state.pmi_at = -1
        if not entry.interrupt:
            return self._aim()
        early = entry.size if self.profile.multi_entry else entry.size - self.pmi_margin
        if early > state.output_offset:
            state.pmi_at = early
            return self._aim()
        # Past the point already: it still comes before the region is filled.
        return self._aim()._replace(pmi=True)

    def _read(self, at: int) -> int:
        """The entry at `at`, from the cache if that is where entries are read ahead."""
        if self.cache != "table":
            return self.memory.read_u64(at)
        start, entries = self.state.cached
        if not start <= at < start + 8 * len(entries):
            start = at - at % PAGE
            entries = unpack("<512Q", self.memory.read(start, PAGE))
            self.state.cached = start, entries
        return entries[(at - start) // 8]

    def _changed(self) -> bool:
        """True if the current entry is read for each write and says something else by now."""
        state = self.state
        if self.cache != "none" or state.entry is None:
            return False
        value = self.memory.read_u64(state.table_base + state.table_offset)
        return value != state.entry.encode()

    def _aim(self) -> OutputResult:
        """Set `limit` to the next offset of the region where something happens."""
        state = self.state
        limit = state.region_size
        if self.smrr_policy == "error" and self.memory.smrr:
            base = state.region_base
            limit = self.memory.first_restricted(base + state.output_offset, base + limit) - base
            if limit == state.output_offset:
                at = base + limit
                return self._fail(f"the output pointer {at:#x} is in restricted memory")
        if state.output_offset < state.pmi_at < limit:
            limit = state.pmi_at
        self._set_limit(limit)
        return OK

    def _set_limit(self, limit: int) -> None:
        self.state.limit = limit
        self._page_end = _NOTHING

    def _open_page(self) -> None:
        """Let `write` store into the current page itself, up to `limit`, if memory allows that.

        `_page_start` and `_page_end` are offsets in the region; they are a cache and no part of the
        state.
        """
        state = self.state
        address = state.region_base + state.output_offset
        page = self.memory.direct_page(address)
        if page is not None:
            self._page = page
            self._page_start = state.output_offset - address % PAGE
            self._page_end = min(state.limit, self._page_start + PAGE)

    def _fail(self, error: str) -> OutputResult:
        """An operational error (section 33.3.10)."""
        self.state.error = error
        self._set_limit(_NOTHING)
        return OutputResult(error=error)
