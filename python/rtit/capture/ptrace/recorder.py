"""Converts capture events to PT and sideband records: one logical processor per traced thread.

The recorder plays the part of the operating system's PT driver. It sets up the trace unit of a
thread before the thread's first instruction. It clears and sets TraceEn where the thread is
switched out and in, which puts an exact TSC into the stream. It passes the bytes that the unit
writes to memory, a single range or ToPA regions, to the perf.data writer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from rtit.capture.events import (
    BRANCH_KINDS,
    EVENT_RECORD,
    KINDS_WITH_BLOB,
    EventFlag,
    EventKind,
    count_branches,
)
from rtit.capture.options import MAX_SCHEDULED_INSTRUCTIONS, PtOptions, instructions_per_tick
from rtit.capture.request import SizeLimits
from rtit.capture.session import COMPRESS_AFTER_PSB
from rtit.capture.store.deleted_files import MappingLocation
from rtit.capture.store.recording_writer import RecordingWriter
from rtit.errors import UsageError
from rtit.perfdata import ExitStatus, Fault, Writer
from rtit.perfdata.filters import AddressFilter
from rtit.processor import ArchState, Processor
from rtit.registers import Msr, Profile
from rtit.unit.arch_state import CODE_BITS
from rtit.unit.memory import Memory
from rtit.unit.parameters.table import Parameters
from rtit.unit.time_model import TimeModel

_TABLE_ADDRESS = 0x10_0000
_FIRST_REGION = 0x1000_0000
_CTL_TOPA = 1 << 8
_ENTRY_END = 1 << 0
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class OutputSchemeSetup:
    """One output scheme (section 33.2.7).

    `regions` 0 means a single range of `size` bytes (128 bytes to 4 GB); otherwise a circular ToPA
    table of that many regions of `size` bytes each (4 KB to 128 MB). Sizes are powers of two.
    Raises UsageError for others.
    """

    regions: int = 0
    size: int = 1 << 22

    def __post_init__(self) -> None:
        low, high = (_PAGE, 128 << 20) if self.regions else (128, 4 << 30)
        if self.size & (self.size - 1) or not low <= self.size <= high:
            raise UsageError(
                f"an output region has a power of two from {low} to {high} bytes, not {self.size}"
            )

    @property
    def ctl_bits(self) -> int:
        """The bits of Msr.CTL that choose this scheme."""
        return _CTL_TOPA if self.regions else 0

    def install_output(self, cpu: Processor, memory: Memory) -> None:
        """Write the table, where there is one, and the output registers. TraceEn must be 0."""
        if not self.regions:
            cpu.set_msr(Msr.OUTPUT_BASE, _FIRST_REGION << 8)
            cpu.set_msr(Msr.OUTPUT_MASK_PTRS, self.size - 1)
            return
        code = (self.size // _PAGE).bit_length() - 1
        for index in range(self.regions):
            memory.write_u64(_TABLE_ADDRESS + 8 * index, self.region_address(index) | code << 6)
        memory.write_u64(_TABLE_ADDRESS + 8 * self.regions, _TABLE_ADDRESS | _ENTRY_END)
        cpu.set_msr(Msr.OUTPUT_BASE, _TABLE_ADDRESS)
        cpu.set_msr(Msr.OUTPUT_MASK_PTRS, 0x7F)

    def region_address(self, index: int) -> int:
        """Return the physical address of ToPA region `index`. Regions are not adjacent, so that a
        packet across two of them shows.
        """
        return _FIRST_REGION + 2 * index * self.size


# Entry points of the modelled kernel. With OS=0 they never reach the stream.
_SYSCALL_ENTRY = 0xFFFF_FFFF_8100_0000
_FAULT_ENTRY = 0xFFFF_FFFF_8100_1000
INTERRUPT_ENTRY = 0xFFFF_FFFF_8100_2000

# Packets go to the file after this many retired instructions. The interval is in instructions, not
# in seconds, so that two recordings of a deterministic run are equal.
_CHUNK_CLOCK = 1 << 14

_TRACE_EN = 1 << 0


@dataclass(slots=True)
class TracedThread:
    """A traced thread, its logical processor, and its counts."""

    tid: int
    pid: int
    cpu: Processor
    pending: bytearray
    enabled: bool = False
    in_window: bool = True
    """Whether the thread is inside the recording window."""
    was_traced: bool = False
    """PacketEn at the last counted event."""
    retired: int = 0
    retired_at_change: int = 0
    """`retired` at the last change of PacketEn."""
    code_bits: int = 64
    """Width of the code: 64, 32 or 16."""
    decodable: int = 0
    """Instructions that retired with PacketEn=1; counted only with filters or a window."""
    fault: Fault | None = None
    """The fault by which the thread left user code; None once it has returned."""


@dataclass(slots=True)
class _TracedProcess:
    # (first, last) linear addresses of each filter, None until its file is mapped
    ranges: list[tuple[int, int] | None]


class PtraceRecorder(RecordingWriter):
    """Feeds capture events to trace units and writes their packets.

    `has_window`: the recording has a start or a stop; `output` is the output scheme of the trace
    units.
    """

    def __init__(
        self,
        writer: Writer,
        options: PtOptions,
        filters: Sequence[AddressFilter] = (),
        *,
        profile: Profile,
        time: TimeModel,
        parameters: Parameters | None = None,
        output: OutputSchemeSetup | None = None,
        size_limits: SizeLimits | None = None,
        has_window: bool = False,
    ) -> None:
        super().__init__(writer, size_limits)
        self._counts_traced = has_window or bool(filters)
        self._filters = list(filters)
        self._profile = profile
        self._time = time
        self._parameters = parameters or Parameters(compress_after_psb=COMPRESS_AFTER_PSB)
        self._output = output or OutputSchemeSetup()
        self._ctl = options.rtit_ctl | _TRACE_EN | self._output.ctl_bits
        self._threads: dict[int, TracedThread] = {}
        self._processes: dict[int, _TracedProcess] = {}
        self._next_chunk = _CHUNK_CLOCK
        self._lacks_time = not options.tsc
        # New code gets a TSC that is later than that of every earlier instruction.
        self._tick = instructions_per_tick(time)
        self._clock_offset = self._last_code_change = 0
        self._written_pages: set[tuple[int, int]] = set()

    def process_events(self, records: bytes, blobs: Sequence[bytes]) -> None:
        """Process one batch of capture events; see `rtit.capture.events` for the layout."""
        threads = self._threads
        clock = self.totals.clock
        self.totals.branches += count_branches(records)
        for kind, flags, length, tid, ip, target, clock, extra in EVENT_RECORD.iter_unpack(records):
            if kind <= EventKind.FAR:
                cpu = threads[tid].cpu
                unit = cpu.unit
                unit.at(clock + self._clock_offset)
                if kind == EventKind.CONDITIONAL:
                    unit.conditional(ip, ip + length, target, bool(flags & 1))
                elif kind == EventKind.CALL:
                    unit.call(ip, ip + length, target)
                elif kind == EventKind.RETURN:
                    unit.ret(ip, target)
                elif kind == EventKind.JUMP:
                    unit.jump(ip, target)
                elif kind == EventKind.INDIRECT_CALL:
                    unit.indirect_call(ip, ip + length, target)
                elif kind == EventKind.INDIRECT_JUMP:
                    unit.indirect_jump(ip, target)
                else:
                    threads[tid].code_bits = 32 if flags & EventFlag.FAR_TO_32_BIT else 64
                    cs_l, cs_d = CODE_BITS[threads[tid].code_bits]
                    cpu.far(ip, target, cs_l=cs_l, cs_d=cs_d)
                if self._counts_traced:
                    self._update_counts(threads[tid], kind, extra)
            elif kind <= EventKind.SWITCH:
                self._trace_far_transfer(
                    threads[tid], kind, flags, ip, target, clock + self._clock_offset
                )
                if kind == EventKind.FAULT:
                    threads[tid].fault = Fault(ip, extra >> 32, target)
                if self._counts_traced:
                    self._update_counts(threads[tid], kind, extra)
            else:
                blob = blobs[extra] if kind in KINDS_WITH_BLOB else b""
                if kind in _CODE_CHANGES and clock > self._last_code_change:
                    self._last_code_change = clock
                    self._clock_offset += self._tick - 1
                self._process_sideband_event(
                    kind, flags, tid, ip, target, clock + self._clock_offset, extra, blob
                )
            if clock >= self._next_chunk:
                self._next_chunk = clock + _CHUNK_CLOCK
                self.totals.clock = clock
                self.flush()
        self.totals.clock = max(self.totals.clock, clock)

    def _update_counts(self, thread: TracedThread, kind: int, retired: int) -> None:
        """Update the counts of traced instructions: PacketEn may have changed at this event.

        `_UNCOUNTED_EXITS` carry no count; no instruction retires between them and the next event.
        """
        if kind in _BRANCHES and thread.was_traced:
            self.totals.traced_branches += 1
        if kind in _UNCOUNTED_EXITS:
            return
        thread.retired = retired
        packet_en = thread.cpu.unit.state.packet_en
        if packet_en != thread.was_traced or kind == EventKind.EXIT:
            if thread.was_traced:
                self.totals.traced_instructions += retired - thread.retired_at_change
                thread.decodable += retired - thread.retired_at_change
            thread.retired_at_change = retired
            thread.was_traced = packet_en

    def flush(self) -> None:
        """Write the pending packets of all threads, and update the size of the file."""
        clock = self._current_clock
        for thread in self._threads.values():
            self._write_pending_packets(thread, clock)
        self._writer.flush()

    @property
    def _current_clock(self) -> int:
        return self.totals.clock + self._clock_offset

    def write_snapshot(self) -> int:
        """Write a snapshot, if the recording takes snapshots; return its bytes of PT."""
        self.flush()
        return self._write_snapshot(self._time.tsc(self._current_clock))

    def close(self) -> None:
        """End all remaining threads, as a driver does at the end of tracing, and close the file.

        May be called again.
        """
        for tid in list(self._threads):
            self._end_thread(tid, self._current_clock)
        self._close(self._time.tsc(self._current_clock))

    def _trace_far_transfer(
        self, thread: TracedThread, kind: int, flags: int, ip: int, target: int, clock: int
    ) -> None:
        cpu = thread.cpu
        self._advance_processor(cpu, clock)
        if kind == EventKind.SYSCALL:
            cpu.syscall(ip, _SYSCALL_ENTRY)
        elif kind == EventKind.RESUME:
            if not cpu.get_msr(Msr.CTL) & _TRACE_EN:
                self._enable_tracing(thread)
            thread.fault = None
            thread.code_bits = 32 if flags & EventFlag.RESUME_32_BIT else 64
            cpu.resume(target, bits=thread.code_bits)
        elif kind == EventKind.INTERRUPT:
            cpu.interrupt(ip, INTERRUPT_ENTRY)
        elif kind == EventKind.FAULT:
            cpu.exception(ip, _FAULT_ENTRY)
        elif kind == EventKind.SOFT_INT:
            cpu.software_interrupt(ip, _FAULT_ENTRY)
        elif kind == EventKind.SWITCH:
            in_user = bool(flags & EventFlag.SWITCH_IN_USER)
            if flags & (EventFlag.SWITCH_TURNS_ON | EventFlag.SWITCH_TURNS_OFF):
                thread.in_window = bool(flags & EventFlag.SWITCH_TURNS_ON)
            if in_user:
                cpu.interrupt(ip, INTERRUPT_ENTRY)
            _clear_trace_en(cpu)
            self._enable_tracing(thread)
            if in_user:
                cpu.resume(ip, bits=thread.code_bits)

    def _advance_processor(self, cpu: Processor, clock: int) -> None:
        """Advance the processor to `clock`.

        A thread that was in the kernel for more than MAX_SCHEDULED_INSTRUCTIONS was switched out at
        its kernel entry: tracing is off until it continues.
        """
        in_kernel = cpu.arch.cpl == 0
        if (
            in_kernel
            and clock - cpu.unit.state.cycle // self._time.cpi > MAX_SCHEDULED_INSTRUCTIONS
        ):
            _clear_trace_en(cpu)
        cpu.at(clock)

    def _enable_tracing(self, thread: TracedThread) -> None:
        if not thread.in_window or self._has_trace_stopped(thread):
            return
        # TraceEn is 0 here. Otherwise a write to the address registers would fault.
        ctl = self._ctl
        process = self._processes[thread.pid]
        for index, (address_filter, found) in enumerate(
            zip(self._filters, process.ranges, strict=True)
        ):
            first, last = found or (0, 0)
            thread.cpu.set_msr(Msr.ADDR0_A + 2 * index, first)
            thread.cpu.set_msr(Msr.ADDR0_A + 2 * index + 1, last)
            ctl |= address_filter.addr_cfg << (32 + 4 * index)
        thread.cpu.set_msr(Msr.CTL, ctl)
        thread.enabled = True

    @staticmethod
    def _has_trace_stopped(thread: TracedThread) -> bool:
        # A TraceStop ends the thread's trace: the driver does not enable it again.
        return thread.enabled and thread.cpu.unit.stopped

    def _process_sideband_event(
        self,
        kind: int,
        flags: int,
        tid: int,
        ip: int,
        target: int,
        clock: int,
        extra: int,
        blob: bytes,
    ) -> None:
        tsc = self._time.tsc(clock)
        writer = self._writer
        if self.is_full and kind in _FILE_EVENTS:
            return
        if kind == EventKind.THREAD:
            self._start_thread(tid, ip, target, extra, clock)
            self._threads[tid].in_window = not flags & EventFlag.THREAD_UNTRACED
        elif kind == EventKind.EXIT:
            if tid in self._threads:
                self._threads[tid].retired = extra
            self._end_thread(tid, clock, flags, ip)
        elif kind == EventKind.EXEC:
            if ip in self._processes and self._threads[tid].enabled:
                self._warn_of_untimed_code("a program replaced itself (exec)")
            self._processes[ip] = self._make_process()
        elif kind == EventKind.COMM:
            writer.comm(
                ip, tid, tsc, os.fsdecode(blob), by_exec=bool(flags & EventFlag.COMM_BY_EXEC)
            )
        elif kind == EventKind.MMAP:
            self._add_mapping(tid, ip, target, tsc, blob, flags)
        elif kind == EventKind.CODE:
            self._write_code_change(self._threads[tid], tsc, ip, blob, flags)
        elif kind == EventKind.WARNING:
            self.totals.warnings.append(blob.decode(errors="replace"))
        elif kind == EventKind.END:
            self.totals.wait_status = ip
            self.totals.window_edges_passed = target
            self.totals.killed = bool(flags & EventFlag.END_KILLED)

    def _write_code_change(
        self, thread: TracedThread, tsc: int, address: int, code: bytes, flags: int
    ) -> None:
        self._write_code(
            MappingLocation(thread.pid, thread.tid, tsc, address, len(code)), code, flags
        )
        if flags & EventFlag.CODE_OF_MAPPING:
            return
        pages = {
            (thread.pid, page) for page in range(address >> 12, (address + len(code) - 1 >> 12) + 1)
        }
        if pages & self._written_pages:
            self._warn_of_untimed_code("a program changed its own code")
        self._written_pages |= pages

    def _warn_of_untimed_code(self, event: str) -> None:
        """Warn that without TSC packets a decoder cannot know which code ran before a change."""
        if self._lacks_time:
            self._lacks_time = False
            self.totals.warnings.append(
                f"{event}, but with tsc=0 the trace has no times, so the trace cannot be decoded "
                "exactly"
            )

    def _make_process(self) -> _TracedProcess:
        return _TracedProcess([None] * len(self._filters))

    def _start_thread(
        self, tid: int, pid: int, parent_tid: int, parent_pid: int, clock: int
    ) -> None:
        tsc = self._time.tsc(clock)
        if pid not in self._processes:
            parent = self._processes.get(parent_pid)
            self._processes[pid] = (
                _TracedProcess(list(parent.ranges)) if parent else self._make_process()
            )
        cpu, pending = self._make_logical_processor(clock)
        self._note_process(pid)
        if parent_tid and not self.is_full:
            self._writer.fork(pid, parent_pid, tid, parent_tid, tsc)
        thread = self._threads[tid] = TracedThread(tid, pid, cpu, pending)
        self._write_trace_start(thread, clock)
        self.totals.threads += 1

    def _make_logical_processor(self, clock: int) -> tuple[Processor, bytearray]:
        """Return a logical processor, and the buffer for the packets of its trace unit."""
        pending = bytearray()
        memory = Memory(observer=lambda _address, data: pending.extend(data))
        cpu = Processor(
            profile=self._profile,
            memory=memory,
            time=self._time,
            parameters=self._parameters,
            arch=ArchState.user64(cpl=0),
            checked=False,
        )
        cpu.at(clock)
        self._output.install_output(cpu, memory)
        pending.clear()  # `install` wrote the ToPA table
        return cpu, pending

    def _write_trace_start(self, thread: TracedThread, clock: int) -> None:
        """Write that the thread's tracing begins."""
        if not self.is_full:
            self._writer.itrace_start(thread.pid, thread.tid, self._time.tsc(clock))

    def _stop_tracing(self, thread: TracedThread, clock: int) -> None:
        """End the thread's tracing and write its last packets."""
        self._advance_processor(thread.cpu, clock)
        self._update_counts(thread, EventKind.EXIT, thread.retired)
        thread.cpu.set_msr(Msr.CTL, 0)
        self._write_pending_packets(thread, clock)

    def _end_thread(self, tid: int, clock: int, flags: int = 0, status: int | None = None) -> None:
        thread = self._threads.pop(tid, None)
        if thread is None:
            return
        self._stop_tracing(thread, clock)
        self._store.end_thread(tid)
        if flags & EventFlag.EXIT_DETACHED:
            return
        took_signal = bool(flags & EventFlag.EXIT_TOOK_SIGNAL)
        ending = None
        if status is not None and (took_signal or tid == thread.pid):
            # The kernel reports the status of the process as that of its first thread.
            fault = thread.fault if took_signal else None
            ending = ExitStatus(status, of_process=True, took_signal=took_signal, fault=fault)
        # A thread that is killed with its process may not have reported its last instructions.
        decodable = None
        if status is not None:
            decodable = thread.decodable if self._counts_traced else thread.retired
        self._write_exit(thread.pid, tid, self._time.tsc(clock), ending, decodable)

    def _add_mapping(
        self, tid: int, address: int, size: int, tsc: int, blob: bytes, flags: int
    ) -> None:
        thread = self._threads[tid]
        location = MappingLocation(thread.pid, tid, tsc, address, size)
        mapping = self._write_mapping(location, blob, flags)
        process = self._processes[thread.pid]
        for index, address_filter in enumerate(self._filters):
            found = address_filter.addresses(address, mapping.pgoff, size, mapping.path)
            if found is not None:
                process.ranges[index] = found

    def _write_pending_packets(self, thread: TracedThread, clock: int) -> None:
        if not thread.pending:
            return
        data = bytes(thread.pending)
        thread.pending.clear()
        self._store_packets(thread.tid, thread.pid, data, self._time.tsc(clock))


def _clear_trace_en(cpu: Processor) -> None:
    """Clear TraceEn, if it is set."""
    ctl = cpu.get_msr(Msr.CTL)
    if ctl & _TRACE_EN:
        cpu.set_msr(Msr.CTL, ctl & ~_TRACE_EN)


_FILE_EVENTS = frozenset((EventKind.COMM, EventKind.MMAP, EventKind.CODE))
_BRANCHES = frozenset(BRANCH_KINDS)
_UNCOUNTED_EXITS = frozenset((EventKind.INTERRUPT, EventKind.FAULT, EventKind.SOFT_INT))
_CODE_CHANGES = frozenset((EventKind.EXEC, EventKind.MMAP, EventKind.CODE))
