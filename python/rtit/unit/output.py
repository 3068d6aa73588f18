"""Trace output: single-range region, ToPA tables, or trace transport (section 33.2.7).

Rules:

* Scheme: FabricEn selects the transport; otherwise ToPA selects tables; otherwise the single range.
* A region is full when its last byte has been written. Then, in this order: STOP stops output
  (OutputOffset stays at the region's size); INT raises a PMI; the pointer moves to the next entry,
  at offset 0.
* The pointer follows an END entry to entry 0 of the table that the entry names, and wraps to entry
  0 of its own table after the entry at offset 0FFFFF8H. With `follow` "eager" it does so as soon as
  the region is full, so that the MSRs never show an END entry; with "lazy" before the next byte.
* An entry is read and checked when it becomes current (`cache` "entry"). "table" reads the whole
  4 KB of the table around the entry at the same time, "none" reads the entry again for each write.
  A malformed entry is an operational error: output ends, and the pointer stays at the entry. The
  single range is checked as a whole when output is enabled.
* With CPUID.(14H,0):ECX[1] = 0 a table is one region and an END entry that points back to the
  table. The PMI is raised `pmi_margin` bytes before the region is full, or immediately if the
  pointer starts beyond that offset.
* A table entry in restricted memory is an operational error. A region that overlaps restricted
  memory loses the bytes stored there (`smrr_policy` "drop"), or is an operational error when the
  pointer gets there ("error").

Output reports stops, errors and PMIs as `OutputResult`; `packet_commit` sets STATUS from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import unpack
from typing import Literal, NamedTuple

from rtit.registers.fields import Field, Register, hexadecimal_repr
from rtit.registers.msr import CTL, OUTPUT_MASK_PTRS
from rtit.registers.profiles import Profile
from rtit.registers.register_file import RegisterFile
from rtit.unit.memory import PAGE, Memory


class SingleRange(NamedTuple):
    """The range of OUTPUT_BASE and the low half of OUTPUT_MASK_PTRS."""

    output_base: int
    mask: int

    @property
    def base(self) -> int:
        """Physical address of offset 0."""
        return self.output_base & ~self.mask

    @property
    def size(self) -> int:
        """Bytes: 128 to 4 GB."""
        return self.mask + 1

    def address_of_offset(self, offset: int) -> int:
        """Return the address of the byte at `offset` (OutputOffset)."""
        return self.base + (offset & self.mask)


def single_range_error(output_base: int, mask: int, offset: int) -> str | None:
    """Return why the range is misconfigured, or None.

    The low 7 bits of `mask` must be set, as in the MSR.
    """
    if mask & (mask + 1):
        return f"single-range mask {mask:#x} is not contiguous"
    if overlap := output_base & mask:
        return (
            f"single-range base {output_base:#x} and mask {mask:#x} have common bits {overlap:#x}"
        )
    if offset > mask:
        return f"single-range OutputOffset {offset:#x} is above the mask {mask:#x}"
    return None


TOPA_ENTRY = Register(
    "ToPA entry",
    "section 33.2.7.2",
    (
        Field("END", 0, 0, "Table 33-3", "the address is a table's, not a region's"),
        Field("INT", 2, 2, "Table 33-3", "signal a PMI when the region is filled"),
        Field("STOP", 4, 4, "Table 33-3", "stop tracing when the region is filled"),
        Field("Size", 9, 6, "Table 33-3", "4 KB << Size; ignored if END"),
        Field("Base", 63, 12, "Table 33-3", "address bits 63:12", limit="maxphyaddr"),
    ),
)

LAST_ENTRY_OFFSET = 0xFFFFFF8
"""Offset of the last entry that the table pointer can name: a table has at most 256 MB."""


@dataclass(frozen=True, slots=True)
class TopaEntry:
    """A ToPA entry: `base` and `size` in bytes (4 KB to 128 MB). `end`: `base` is a table."""

    __repr__ = hexadecimal_repr("base", "size")

    base: int
    size: int = 4096
    end: bool = False
    interrupt: bool = False
    stop: bool = False

    def encode(self) -> int:
        """Return the entry as a 64-bit number. Raises ValueError without an encoding."""
        code = self.size.bit_length() - 13
        if self.size != 4096 << max(code, 0) or code > 15:
            raise ValueError(f"a ToPA region has 4 KB << 0..15 bytes, not {self.size:#x}")
        if self.base % 4096:
            raise ValueError(f"a ToPA address is a multiple of 4 KB, not {self.base:#x}")
        return TOPA_ENTRY.encode(
            END=self.end,
            INT=self.interrupt,
            STOP=self.stop,
            Size=0 if self.end else code,
            Base=self.base >> 12,
        )

    @classmethod
    def decode(cls, value: int) -> TopaEntry:
        """Return the entry in `value`; reserved bits are ignored (see `topa_entry_error`)."""
        fields = TOPA_ENTRY.decode(value)
        return cls(
            fields.Base << 12,
            4096 << fields.Size,
            bool(fields.END),
            bool(fields.INT),
            bool(fields.STOP),
        )


def topa_entry_error(
    value: int, index: int, table_base: int, *, maxphyaddr: int, multi_entry: bool
) -> str | None:
    """Return why entry `index` of a table is malformed, or None ("ToPA Errors", 33.2.7.2)."""
    if table_base % 4096:
        return f"ToPA table base {table_base:#x} is not 4 KB aligned"
    if reserved := value & TOPA_ENTRY.reserved_mask:
        return f"ToPA entry {index} sets reserved bits {reserved:#x}"
    entry = TopaEntry.decode(value)
    if entry.base >> maxphyaddr:
        return f"ToPA entry {index} has address {entry.base:#x}, beyond MAXPHYADDR"
    if not multi_entry and index > 1:
        return f"ToPA entry {index} on a processor with one output region"
    if entry.end:
        if entry.interrupt or entry.stop:
            return f"ToPA entry {index} has END with INT or STOP"
        if index == 0:
            return "ToPA entry 0 has END"
        if not multi_entry and entry.base != table_base:
            return f"ToPA END entry points to {entry.base:#x}, not to its table {table_base:#x}"
        return None
    if not multi_entry and index > 0:
        return f"ToPA entry {index} has no END, on a processor with one output region"
    if entry.base % entry.size:
        return f"ToPA region {entry.base:#x} is not aligned to its size {entry.size:#x}"
    return None


def write_topa_table(memory: Memory, base: int, entries: Iterable[TopaEntry | int]) -> None:
    """Store a table at `base`; a number is stored as it is, to build malformed tables."""
    for index, entry in enumerate(entries):
        value = entry if isinstance(entry, int) else entry.encode()
        memory.write_u64(base + 8 * index, value)


_LOWER_MASK = OUTPUT_MASK_PTRS["LowerMask"].mask
_TABLE_OFFSET_FIELD = OUTPUT_MASK_PTRS["MaskOrTableOffset"]
_OUTPUT_OFFSET_FIELD = OUTPUT_MASK_PTRS["OutputOffset"]
_FABRIC = CTL["FabricEn"].mask
_TOPA = CTL["ToPA"].mask
_NO_LIMIT = -1
"""A `limit` below every offset: each write takes the slow path."""


class OutputResult(NamedTuple):
    """The outcome of an enable or a write.

    `lost`: bytes at the end of the data that were not accepted. `stopped`: a STOP region is full.
    `error`: an operational error, as text. `pmi`: a ToPA PMI is due (after the stop, if both
    occur).
    """

    lost: int = 0
    stopped: bool = False
    error: str | None = None
    pmi: bool = False


ACCEPTED = OutputResult()
"""All bytes were accepted and nothing happened: what nearly every write returns (use `is`)."""


class OutputScheme(IntEnum):
    """The output scheme in use (section 33.2.7)."""

    NONE = 0
    SINGLE_RANGE = 1
    TOPA = 2
    FABRIC = 3


@dataclass(slots=True)
class OutputState:
    """The state of the output: a plain comparable value.

    `table_base` is OUTPUT_BASE; `table_offset` the offset of the current entry in bytes (ToPA);
    `mask` the mask of the single range. `region_base` and `region_size` describe the current
    region; `output_offset` is the offset of the next byte. `limit` is the offset of the next action
    (PMI, restricted memory, end of the region); `pmi_offset` that of the PMI, or -1. `entry` is the
    current entry as read. `pending`: the pointer has moved, and the entry has not been read yet
    (lazy). `cached`: (address, entries) read ahead.
    """

    __repr__ = hexadecimal_repr(
        *("table_base", "table_offset", "mask", "output_offset"),
        *("region_base", "region_size", "limit", "cached"),
    )

    scheme: OutputScheme = OutputScheme.NONE
    enabled: bool = False
    table_base: int = 0
    table_offset: int = 0
    mask: int = _LOWER_MASK
    output_offset: int = 0
    region_base: int = 0
    region_size: int = 0
    limit: int = _NO_LIMIT
    pmi_offset: int = -1
    entry: TopaEntry | None = None
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
        self._page_end = _NO_LIMIT

    def enable(self, registers: RegisterFile) -> OutputResult:
        """Set TraceEn: load the pointers from the MSRs, and check the current entry.

        An error here is an operational error: nothing will be written.
        """
        pointers = registers.output_mask_ptrs | _LOWER_MASK
        offset = _OUTPUT_OFFSET_FIELD.extract_field(pointers)
        state = OutputState(enabled=True, table_base=registers.output_base, output_offset=offset)
        self.state = state
        self._page_end = _NO_LIMIT
        if registers.ctl & _FABRIC:
            state.scheme = OutputScheme.FABRIC
            state.mask = pointers & 0xFFFFFFFF
            return ACCEPTED
        if registers.ctl & _TOPA:
            state.scheme = OutputScheme.TOPA
            state.table_offset = _TABLE_OFFSET_FIELD.extract_field(pointers) << 3
            return self._load_entry()
        state.scheme = OutputScheme.SINGLE_RANGE
        state.mask = pointers & 0xFFFFFFFF
        error = single_range_error(registers.output_base, state.mask, offset)
        if error:
            return self._record_operational_error(error)
        span = SingleRange(registers.output_base, state.mask)
        state.region_base, state.region_size = span.base, span.size
        return self._update_limit()

    def disable(self) -> None:
        """Clear TraceEn: `msrs()` stays, and no byte is accepted until the next enable."""
        self.state.enabled = False
        self._set_limit(_NO_LIMIT)

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
            return ACCEPTED
        if end < state.limit and self.cache != "none":
            self.memory.store(state.region_base + offset, data)
            state.output_offset = end
            if self.memory.observer is None:
                self._cache_current_page()
            return ACCEPTED
        return self._write_slowly(data)

    def msrs(self) -> tuple[int, int]:
        """Return the present IA32_RTIT_OUTPUT_BASE and IA32_RTIT_OUTPUT_MASK_PTRS."""
        state = self.state
        low = state.mask
        if state.scheme == OutputScheme.TOPA:
            low = state.table_offset >> 3 << _TABLE_OFFSET_FIELD.low | _LOWER_MASK
        return state.table_base, state.output_offset << _OUTPUT_OFFSET_FIELD.low | low

    def snapshot(self) -> OutputState:
        """Return a copy of the state."""
        return replace(self.state)

    def restore(self, state: OutputState) -> None:
        """Replace the state by a snapshot, without memory."""
        self.state = replace(state)
        self._page_end = _NO_LIMIT

    def _write_slowly(self, data: bytes) -> OutputResult:
        """Write data during which an action occurs, or that cannot be written at all."""
        state = self.state
        size = len(data)
        if not state.enabled:
            raise RuntimeError("trace output is not enabled")
        if state.stopped or state.error is not None:
            return OutputResult(size, state.stopped, state.error)
        if state.scheme == OutputScheme.FABRIC:
            if self.fabric is not None:
                self.fabric(data)
            return ACCEPTED
        done = 0
        pmi = False
        while done < size:
            result = ACCEPTED
            if state.pending or self._has_entry_changed():
                result = self._load_entry()
                pmi |= result.pmi
            if result.error is None:
                count = min(size - done, state.limit - state.output_offset)
                part = data[done : done + count]
                self.memory.store(state.region_base + state.output_offset, part)
                state.output_offset += count
                done += count
                if state.output_offset == state.limit:
                    result = self._handle_limit_reached()
            pmi |= result.pmi
            if result.stopped or result.error is not None:
                return result._replace(lost=size - done, pmi=pmi)
        return OutputResult(pmi=True) if pmi else ACCEPTED

    def _handle_limit_reached(self) -> OutputResult:
        """Perform the action at `limit`."""
        state = self.state
        pmi = state.output_offset == state.pmi_offset
        if pmi:
            state.pmi_offset = -1
        result = (
            self._update_limit()
            if state.output_offset < state.region_size
            else self._finish_region()
        )
        return result._replace(pmi=True) if pmi else result

    def _finish_region(self) -> OutputResult:
        """Leave a full region: stop, wrap, or move to the next entry."""
        state = self.state
        if state.entry is not None and state.entry.stop:
            state.stopped = True
            self._set_limit(_NO_LIMIT)
            return OutputResult(stopped=True)
        state.output_offset = 0
        if state.scheme == OutputScheme.SINGLE_RANGE:
            return self._update_limit()
        state.table_offset = (
            0 if state.table_offset == LAST_ENTRY_OFFSET else state.table_offset + 8
        )
        if self.follow == "lazy":
            state.pending = True
            self._set_limit(_NO_LIMIT)
            return ACCEPTED
        return self._load_entry()

    def _load_entry(self) -> OutputResult:
        """Read the entry at the table pointer, following an END entry."""
        state = self.state
        state.pending = False
        while True:
            at = state.table_base + state.table_offset
            if self.memory.first_restricted_address(at, at + 8) < at + 8:
                return self._record_operational_error(
                    f"ToPA entry at {at:#x} is in restricted memory"
                )
            value = self._read_entry(at)
            error = topa_entry_error(
                value,
                state.table_offset >> 3,
                state.table_base,
                maxphyaddr=self.profile.maxphyaddr,
                multi_entry=self.profile.multi_entry,
            )
            if error:
                return self._record_operational_error(error)
            entry = TopaEntry.decode(value)
            if not entry.end:
                break
            # Entry 0 of the next table cannot be END, so this comes round once.
            state.table_base, state.table_offset, state.output_offset = entry.base, 0, 0
        state.entry = entry
        state.region_base, state.region_size = entry.base, entry.size
        if state.output_offset >= entry.size:
            offset = state.output_offset
            return self._record_operational_error(
                f"ToPA OutputOffset {offset:#x} is not below {entry.size:#x}"
            )
        state.pmi_offset = -1
        if not entry.interrupt:
            return self._update_limit()
        early = entry.size if self.profile.multi_entry else entry.size - self.pmi_margin
        if early > state.output_offset:
            state.pmi_offset = early
            return self._update_limit()
        # Past the point already: it still comes before the region is filled.
        return self._update_limit()._replace(pmi=True)

    def _read_entry(self, at: int) -> int:
        """Return the entry at address `at`, from the cache if entries are read ahead."""
        if self.cache != "table":
            return self.memory.read_u64(at)
        start, entries = self.state.cached
        if not start <= at < start + 8 * len(entries):
            start = at - at % PAGE
            entries = unpack("<512Q", self.memory.read(start, PAGE))
            self.state.cached = start, entries
        return entries[(at - start) // 8]

    def _has_entry_changed(self) -> bool:
        """Return whether the current entry has changed, if it is read again for each write."""
        state = self.state
        if self.cache != "none" or state.entry is None:
            return False
        value = self.memory.read_u64(state.table_base + state.table_offset)
        return value != state.entry.encode()

    def _update_limit(self) -> OutputResult:
        """Set `limit` to the offset of the next action in the region."""
        state = self.state
        limit = state.region_size
        if self.smrr_policy == "error" and self.memory.smrr:
            base = state.region_base
            limit = (
                self.memory.first_restricted_address(base + state.output_offset, base + limit)
                - base
            )
            if limit == state.output_offset:
                at = base + limit
                return self._record_operational_error(
                    f"the output pointer {at:#x} is in restricted memory"
                )
        if state.output_offset < state.pmi_offset < limit:
            limit = state.pmi_offset
        self._set_limit(limit)
        return ACCEPTED

    def _set_limit(self, limit: int) -> None:
        self.state.limit = limit
        self._page_end = _NO_LIMIT

    def _cache_current_page(self) -> None:
        """Let `write` store into the current page directly, up to `limit`, if memory allows it.

        `_page_start` and `_page_end` are offsets in the region: a cache, not part of the state.
        """
        state = self.state
        address = state.region_base + state.output_offset
        page = self.memory.page_for_direct_stores(address)
        if page is not None:
            self._page = page
            self._page_start = state.output_offset - address % PAGE
            self._page_end = min(state.limit, self._page_start + PAGE)

    def _record_operational_error(self, error: str) -> OutputResult:
        """Record an operational error (section 33.3.10)."""
        self.state.error = error
        self._set_limit(_NO_LIMIT)
        return OutputResult(error=error)
