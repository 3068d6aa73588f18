"""Record as a machine with several CPUs does: threads share trace units, and migrate.

The file has the form of `perf record` of a whole machine: one buffer per CPU, and context-switch
records. A thread without a CPU gets the next one, round robin, at its next event; the thread that
had this CPU is interrupted at its next instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtit.capture.events import EVENT_RECORD, EventKind
from rtit.capture.ptrace.recorder import INTERRUPT_ENTRY, PtraceRecorder, TracedThread
from rtit.perfdata import SwitchRecords
from rtit.registers import Msr

if TYPE_CHECKING:
    from rtit.processor import Processor

_TRACE_EN = 1 << 0
_IDLE_THREAD = (0, 0)
_SWITCH_TICKS = 1000
_KINDS_WITH_TARGET = frozenset(
    (
        EventKind.JUMP,
        EventKind.CALL,
        EventKind.INDIRECT_JUMP,
        EventKind.INDIRECT_CALL,
        EventKind.RETURN,
        EventKind.FAR,
        EventKind.RESUME,
    )
)
_KINDS_THAT_LEAVE = frozenset(
    (EventKind.SYSCALL, EventKind.INTERRUPT, EventKind.FAULT, EventKind.SOFT_INT)
)


@dataclass(slots=True, eq=False)
class _CpuSlot:
    """A CPU, and the thread that has it."""

    number: int
    cpu: Processor
    pending: bytearray
    thread: TracedThread | None = None
    recorded_thread: tuple[int, int] = _IDLE_THREAD
    """pid and tid of the thread that has the CPU according to the switch records."""


class SharedCpuRecorder(PtraceRecorder):
    """A `PtraceRecorder` with `cpus` CPUs that the threads share.

    With the writer's `switches` THREADS, tracing is turned off and on at a switch, as in perf's
    recordings of threads; with WIDE it stays on, as in perf's recordings of CPUs.
    """

    def __init__(self, *arguments: Any, cpus: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._slots = [_CpuSlot(number, *self._make_logical_processor(0)) for number in range(cpus)]
        self._next_cpu = 0
        self._next_ips: dict[int, int] = {}
        self._last_clock = 0

    def process_events(self, records: bytes, blobs: Sequence[bytes]) -> None:
        """Process one batch of capture events."""
        for start in range(0, len(records), EVENT_RECORD.size):
            record = records[start : start + EVENT_RECORD.size]
            kind, flags, length, tid, ip, target, clock, _ = EVENT_RECORD.unpack(record)
            if kind <= EventKind.SWITCH:
                self._schedule_thread(self._threads[tid])
            super().process_events(record, blobs)
            self._last_clock = clock
            if kind == EventKind.CONDITIONAL:
                self._next_ips[tid] = target if flags & 1 else ip + length
            elif kind in _KINDS_WITH_TARGET:
                self._next_ips[tid] = target
            elif kind in _KINDS_THAT_LEAVE:
                self._next_ips.pop(tid, None)

    def flush(self) -> None:
        """Write the pending packets of all CPUs, and update the size of the file."""
        tsc = self._time.tsc(self._current_clock)
        for slot in self._slots:
            self._write_packets_of_slot(slot, tsc)
        self._writer.flush()

    def close(self) -> None:
        """End all remaining threads and close the file. May be called again."""
        for slot in self._slots:
            self._write_packets_of_slot(slot, self._time.tsc(self._current_clock))
        super().close()

    def _schedule_thread(self, thread: TracedThread) -> None:
        if self._slot_of_thread(thread) is not None:
            return
        self._next_cpu += 1
        slot = self._slots[self._next_cpu % len(self._slots)]
        cpu = slot.cpu
        threads = self._writer.switches is SwitchRecords.THREADS
        tick = self._tick * _SWITCH_TICKS
        when = self._last_clock + self._clock_offset
        self._advance_processor(cpu, when)
        before = slot.thread
        if before is not None and (ip := self._next_ips.get(before.tid)) is not None:
            cpu.interrupt(ip, INTERRUPT_ENTRY)
        ctl = cpu.get_msr(Msr.CTL)
        if threads and ctl & _TRACE_EN:
            cpu.set_msr(Msr.CTL, ctl & ~_TRACE_EN)
        self._clock_offset += 4 * tick
        after = (thread.pid, thread.tid)
        back = self._time.tsc(when + 3 * tick) - self._time.tsc(when + tick)
        left = slot.recorded_thread if before is not None or not threads else _IDLE_THREAD
        first = not thread.enabled and thread.cpu is not cpu
        self._writer.switch(slot.number, self._time.tsc(when + tick), left, after, back)
        slot.thread, slot.recorded_thread = thread, after
        thread.cpu = cpu
        cpu.at(when + 2 * tick)
        if first:
            self._writer.itrace_start(*after, self._time.tsc(when + 3 * tick))
        if not threads:
            thread.enabled = bool(ctl & _TRACE_EN)
        elif thread.enabled:
            self._enable_tracing(thread)
        ip = self._next_ips.get(thread.tid)
        if ip is not None:
            cpu.at(when + 4 * tick)
            cpu.resume(ip, bits=thread.code_bits)

    def _slot_of_thread(self, thread: TracedThread) -> _CpuSlot | None:
        return next((slot for slot in self._slots if slot.thread is thread), None)

    def _write_packets_of_slot(self, slot: _CpuSlot, tsc: int) -> None:
        if slot.pending:
            data = bytes(slot.pending)
            slot.pending.clear()
            self._writer.auxtrace(-1, -1, data, None, tsc, cpu=slot.number)
            self.totals.pt_bytes += len(data)

    def _advance_processor(self, cpu: Processor, clock: int) -> None:
        """Advance the CPU to `clock`. Tracing stays on while a CPU is idle, if perf traces CPUs."""
        if self._writer.switches is SwitchRecords.THREADS:
            super()._advance_processor(cpu, clock)
        else:
            cpu.at(clock)

    # Overrides for what PtraceRecorder does with the trace unit of each thread

    def _write_trace_start(self, thread: TracedThread, clock: int) -> None:
        """Do nothing: tracing begins when the thread gets a CPU."""

    def _stop_tracing(self, thread: TracedThread, clock: int) -> None:
        slot = self._slot_of_thread(thread)
        self._next_ips.pop(thread.tid, None)
        if slot is None:
            return
        slot.thread = None
        self._advance_processor(slot.cpu, clock)
        if self._writer.switches is SwitchRecords.THREADS:
            slot.cpu.set_msr(Msr.CTL, 0)
        else:
            gone = clock + _SWITCH_TICKS * self._tick
            self._writer.switch(
                slot.number, self._time.tsc(gone), slot.recorded_thread, _IDLE_THREAD
            )
            self._clock_offset += 2 * _SWITCH_TICKS * self._tick
            slot.recorded_thread = _IDLE_THREAD

    def _write_pending_packets(self, thread: TracedThread, clock: int) -> None:
        """Do nothing: the CPUs have the packets."""
