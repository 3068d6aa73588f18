"""Turn capture events into PT and sideband records: one logical processor per traced thread.

The recorder plays the part of the operating system's PT driver. It sets up the trace unit of a
thread before the thread's first instruction. It clears and sets TraceEn where the thread is
switched out and in, which puts an exact TSC into the stream. It passes the bytes that the unit
writes to memory to the perf.data writer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from rtit.capture.clocks import MAX_SCHEDULED_INSTRUCTIONS, instructions_per_tick
from rtit.capture.events import BRANCH_KINDS, EVENT_RECORD, EventKind, Flag, count_branches
from rtit.capture.options import PtOptions
from rtit.capture.recording import COMPRESS_AFTER_PSB
from rtit.capture.store.deleted_files import MappedAt
from rtit.capture.store.recording_writer import RecordingWriter
from rtit.capture.store.size_limits import SizeLimits
from rtit.capture.store.unit_output import OutputSetup
from rtit.perfdata import ExitStatus, Fault, Writer
from rtit.perfdata.filters import AddressFilter
from rtit.processor import ArchState, Processor
from rtit.registers import IA32_RTIT_ADDR0_A, IA32_RTIT_CTL, Profile
from rtit.unit.arch_state import CODE_BITS
from rtit.unit.memory import Memory
from rtit.unit.parameters.table import Parameters
from rtit.unit.time_model import TimeModel

# Where the modelled kernel's entry points are. With OS=0 they never reach the stream.
_SYSCALL_ENTRY = 0xFFFF_FFFF_8100_0000
_FAULT_ENTRY = 0xFFFF_FFFF_8100_1000
INTERRUPT_ENTRY = 0xFFFF_FFFF_8100_2000

# What threads have written goes to the file after this many retired instructions. That depends on
# what ran alone, never on the time of day: two recordings of one deterministic run are cut alike.
_CHUNK_CLOCK = 1 << 14

_TRACE_EN = 1 << 0


@dataclass(slots=True)
class TracedThread:
    """A thread that is traced."""

    tid: int
    pid: int
    cpu: Processor
    pending: bytearray
    enabled: bool = False
    on: bool = True
    """Not before the start or after the stop of what is to be traced."""
    traced: bool = False
    """PacketEn when that last counted."""
    retired: int = 0
    since: int = 0
    """`retired` when that last changed."""
    bits: int = 64
    """Of the code that it runs."""
    decodable: int = 0
    """Instructions that retired while PacketEn was 1, where not all do."""
    fault: Fault | None = None
    """What took it out of user code, if it has not come back."""


@dataclass(slots=True)
class _TracedProcess:
    # (first, last) linear addresses of each filter, None until its file is mapped
    ranges: list[tuple[int, int] | None]


class PtraceRecorder(RecordingWriter):
    """Feeds capture events to trace units and writes what they give.

    `options` and `filters` are what the user asked for; `windowed`: it is traced from somewhere or
    to somewhere; `output` chooses the units' output scheme.
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
        output: OutputSetup | None = None,
        size_limits: SizeLimits | None = None,
        windowed: bool = False,
    ) -> None:
        super().__init__(writer, size_limits)
        self._counts = windowed or bool(filters)
        self._filters = list(filters)
        self._profile = profile
        self._time = time
        self._parameters = parameters or Parameters(compress_after_psb=COMPRESS_AFTER_PSB)
        self._output = output or OutputSetup()
        self._ctl = options.rtit_ctl | _TRACE_EN | self._output.ctl
        self._threads: dict[int, TracedThread] = {}
        self._processes: dict[int, _TracedProcess] = {}
        self._next_chunk = _CHUNK_CLOCK
        self._untimed = not options.tsc
        # Code that appears does so at a TSC that no instruction before it has.
        self._tick = instructions_per_tick(time)
        self._ahead = self._last_change = 0
        self._written: set[tuple[int, int]] = set()

    def feed(self, records: bytes, blobs: Sequence[bytes]) -> None:
        """Take one batch of capture events (`rtit.capture.events` has the layout)."""
        threads = self._threads
        clock = self.totals.clock
        self.totals.branches += count_branches(records)
        for kind, flags, length, tid, ip, target, clock, extra in EVENT_RECORD.iter_unpack(records):
            if kind <= EventKind.FAR:
                cpu = threads[tid].cpu
                unit = cpu.unit
                unit.at(clock + self._ahead)
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
                    threads[tid].bits = 32 if flags & Flag.FAR_TO_32_BIT else 64
                    cs_l, cs_d = CODE_BITS[threads[tid].bits]
                    cpu.far(ip, target, cs_l=cs_l, cs_d=cs_d)
                if self._counts:
                    self._count(threads[tid], kind, extra)
            elif kind <= EventKind.SWITCH:
                self._transfer(threads[tid], kind, flags, ip, target, clock + self._ahead)
                if kind == EventKind.FAULT:
                    threads[tid].fault = Fault(ip, extra >> 32, target)
                if self._counts:
                    self._count(threads[tid], kind, extra)
            else:
                blob = blobs[extra] if kind in _WITH_BLOB else b""
                if kind in _OF_CODE and clock > self._last_change:
                    self._last_change = clock
                    self._ahead += self._tick - 1
                self._sideband(kind, flags, tid, ip, target, clock + self._ahead, extra, blob)
            if clock >= self._next_chunk:
                self._next_chunk = clock + _CHUNK_CLOCK
                self.totals.clock = clock
                self.flush()
        self.totals.clock = max(self.totals.clock, clock)

    def _count(self, thread: TracedThread, kind: int, retired: int) -> None:
        """PacketEn may have changed at this event. After those that tell no number nothing retires
        before one that does.
        """
        if kind in _BRANCHES and thread.traced:
            self.totals.traced_branches += 1
        if kind in _OUT:
            return
        thread.retired = retired
        on = thread.cpu.unit.state.packet_en
        if on != thread.traced or kind == EventKind.EXIT:
            if thread.traced:
                self.totals.traced += retired - thread.since
                thread.decodable += retired - thread.since
            thread.since = retired
            thread.traced = on

    def flush(self) -> None:
        """Write what the threads have pending, and bring the file's size up to date."""
        clock = self._now
        for thread in self._threads.values():
            self._write_chunk(thread, clock)
        self._writer.flush()

    @property
    def _now(self) -> int:
        return self.totals.clock + self._ahead

    def dump(self) -> int:
        """Write a snapshot, of a recording of snapshots; returns how many bytes of PT it has."""
        self.flush()
        return self._dump(self._time.tsc(self._now))

    def close(self) -> None:
        """End every thread that is still there, as a driver does when tracing is stopped, and the
        file. Again is harmless.
        """
        for tid in list(self._threads):
            self._end_thread(tid, self._now)
        self._close(self._time.tsc(self._now))

    def _transfer(
        self, thread: TracedThread, kind: int, flags: int, ip: int, target: int, clock: int
    ) -> None:
        cpu = thread.cpu
        self._wait_until(cpu, clock)
        if kind == EventKind.SYSCALL:
            cpu.syscall(ip, _SYSCALL_ENTRY)
        elif kind == EventKind.RESUME:
            if not cpu.get_msr(IA32_RTIT_CTL) & _TRACE_EN:
                self._enable(thread)
            thread.fault = None
            thread.bits = 32 if flags & Flag.RESUME_32_BIT else 64
            cpu.resume(target, bits=thread.bits)
        elif kind == EventKind.INTERRUPT:
            cpu.interrupt(ip, INTERRUPT_ENTRY)
        elif kind == EventKind.FAULT:
            cpu.exception(ip, _FAULT_ENTRY)
        elif kind == EventKind.SOFT_INT:
            cpu.software_interrupt(ip, _FAULT_ENTRY)
        elif kind == EventKind.SWITCH:
            in_user = bool(flags & Flag.SWITCH_IN_USER)
            if flags & (Flag.SWITCH_TURNS_ON | Flag.SWITCH_TURNS_OFF):
                thread.on = bool(flags & Flag.SWITCH_TURNS_ON)
            if in_user:
                cpu.interrupt(ip, INTERRUPT_ENTRY)
            _clear_trace_en(cpu)
            self._enable(thread)
            if in_user:
                cpu.resume(ip, bits=thread.bits)

    def _wait_until(self, cpu: Processor, clock: int) -> None:
        """Move to `clock`. A thread that was in the kernel for longer than LONGEST_SCHEDULED was
        switched out when it came there: tracing is off until it goes on.
        """
        in_kernel = cpu.arch.cpl == 0
        if (
            in_kernel
            and clock - cpu.unit.state.cycle // self._time.cpi > MAX_SCHEDULED_INSTRUCTIONS
        ):
            _clear_trace_en(cpu)
        cpu.at(clock)

    def _enable(self, thread: TracedThread) -> None:
        if not thread.on or self._stopped(thread):
            return
        # TraceEn is 0 here: the address registers take writes at no other time.
        ctl = self._ctl
        process = self._processes[thread.pid]
        for index, (wanted, found) in enumerate(zip(self._filters, process.ranges, strict=True)):
            first, last = found or (0, 0)
            thread.cpu.set_msr(IA32_RTIT_ADDR0_A + 2 * index, first)
            thread.cpu.set_msr(IA32_RTIT_ADDR0_A + 2 * index + 1, last)
            ctl |= wanted.addr_cfg << (32 + 4 * index)
        thread.cpu.set_msr(IA32_RTIT_CTL, ctl)
        thread.enabled = True

    @staticmethod
    def _stopped(thread: TracedThread) -> bool:
        # A TraceStop ends the thread's trace: the driver does not start it again behind the user's
        # back.
        return thread.enabled and thread.cpu.unit.stopped

    def _sideband(
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
        now = self._time.tsc(clock)
        writer = self._writer
        if self.full and kind in _OF_THE_FILE:
            return
        if kind == EventKind.THREAD:
            self._start_thread(tid, ip, target, extra, clock)
            self._threads[tid].on = not flags & Flag.THREAD_UNTRACED
        elif kind == EventKind.EXIT:
            if tid in self._threads:
                self._threads[tid].retired = extra
            self._end_thread(tid, clock, flags, ip)
        elif kind == EventKind.EXEC:
            if ip in self._processes and self._threads[tid].enabled:
                self._warn_untimed("a program replaced itself (exec)")
            self._processes[ip] = self._new_process()
        elif kind == EventKind.COMM:
            writer.comm(ip, tid, now, os.fsdecode(blob), by_exec=bool(flags & Flag.COMM_BY_EXEC))
        elif kind == EventKind.MMAP:
            self._mapped(tid, ip, target, now, blob, flags)
        elif kind == EventKind.CODE:
            self._poke(self._threads[tid], now, ip, blob, flags)
        elif kind == EventKind.WARNING:
            self.totals.warnings.append(blob.decode(errors="replace"))
        elif kind == EventKind.END:
            self.totals.status = ip
            self.totals.edges = target
            self.totals.killed = bool(flags & Flag.END_KILLED)

    def _poke(self, thread: TracedThread, now: int, address: int, code: bytes, flags: int) -> None:
        self._write_code(MappedAt(thread.pid, thread.tid, now, address, len(code)), code, flags)
        if flags & Flag.CODE_OF_MAPPING:
            return
        pages = {
            (thread.pid, page) for page in range(address >> 12, (address + len(code) - 1 >> 12) + 1)
        }
        if pages & self._written:
            self._warn_untimed("a program changed its own code")
        self._written |= pages

    def _warn_untimed(self, what: str) -> None:
        """Without TSC packets a decoder cannot tell which code ran before a change."""
        if self._untimed:
            self._untimed = False
            self.totals.warnings.append(
                f"{what}, but tsc=0 leaves the trace without time: it cannot be decoded exactly"
            )

    def _new_process(self) -> _TracedProcess:
        return _TracedProcess([None] * len(self._filters))

    def _start_thread(
        self, tid: int, pid: int, parent_tid: int, parent_pid: int, clock: int
    ) -> None:
        now = self._time.tsc(clock)
        if pid not in self._processes:
            parent = self._processes.get(parent_pid)
            self._processes[pid] = (
                _TracedProcess(list(parent.ranges)) if parent else self._new_process()
            )
        cpu, pending = self._trace_unit(clock)
        self._begun(pid)
        if parent_tid and not self.full:
            self._writer.fork(pid, parent_pid, tid, parent_tid, now)
        thread = self._threads[tid] = TracedThread(tid, pid, cpu, pending)
        self._begin(thread, clock)
        self.totals.threads += 1

    def _trace_unit(self, clock: int) -> tuple[Processor, bytearray]:
        """A logical processor, and what its unit writes."""
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
        self._output.install(cpu, memory)
        pending.clear()  # the ToPA table is no trace
        return cpu, pending

    def _begin(self, thread: TracedThread, clock: int) -> None:
        """Its tracing begins."""
        if not self.full:
            self._writer.itrace_start(thread.pid, thread.tid, self._time.tsc(clock))

    def _stop(self, thread: TracedThread, clock: int) -> None:
        """Its tracing ends."""
        self._wait_until(thread.cpu, clock)
        self._count(thread, EventKind.EXIT, thread.retired)
        thread.cpu.set_msr(IA32_RTIT_CTL, 0)
        self._write_chunk(thread, clock)

    def _end_thread(self, tid: int, clock: int, flags: int = 0, status: int | None = None) -> None:
        thread = self._threads.pop(tid, None)
        if thread is None:
            return
        self._stop(thread, clock)
        self._store.end(tid)
        if flags & Flag.EXIT_DETACHED:
            return
        took = bool(flags & Flag.EXIT_TOOK_SIGNAL)
        ending = None
        if status is not None and (took or tid == thread.pid):
            # The kernel gives the status of the process as that of its first thread.
            fault = thread.fault if took else None
            ending = ExitStatus(status, of_process=True, took_signal=took, fault=fault)
        # A thread that is killed with its process may not have reported its last instructions.
        known = None
        if status is not None:
            known = thread.decodable if self._counts else thread.retired
        self._write_exit(thread.pid, tid, self._time.tsc(clock), ending, known)

    def _mapped(self, tid: int, address: int, size: int, now: int, blob: bytes, flags: int) -> None:
        thread = self._threads[tid]
        place = MappedAt(thread.pid, tid, now, address, size)
        mapping = self._write_mapping(place, blob, flags)
        process = self._processes[thread.pid]
        for index, wanted in enumerate(self._filters):
            found = wanted.addresses(address, mapping.pgoff, size, mapping.path)
            if found is not None:
                process.ranges[index] = found

    def _write_chunk(self, thread: TracedThread, clock: int) -> None:
        if not thread.pending:
            return
        data = bytes(thread.pending)
        thread.pending.clear()
        self._put(thread.tid, thread.pid, data, self._time.tsc(clock))


def _clear_trace_en(cpu: Processor) -> None:
    """Clear TraceEn, if it is set."""
    ctl = cpu.get_msr(IA32_RTIT_CTL)
    if ctl & _TRACE_EN:
        cpu.set_msr(IA32_RTIT_CTL, ctl & ~_TRACE_EN)


_OF_THE_FILE = frozenset((EventKind.COMM, EventKind.MMAP, EventKind.CODE))
_BRANCHES = frozenset(BRANCH_KINDS)
_OUT = frozenset((EventKind.INTERRUPT, EventKind.FAULT, EventKind.SOFT_INT))
_OF_CODE = frozenset((EventKind.EXEC, EventKind.MMAP, EventKind.CODE))
_WITH_BLOB = frozenset(
    (EventKind.EXEC, EventKind.COMM, EventKind.MMAP, EventKind.CODE, EventKind.WARNING)
)
