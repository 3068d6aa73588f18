"""Record as a machine with several CPUs would: threads share trace units, and migrate.

The result is what `perf record` of a whole machine writes: one buffer per CPU, with context-switch
records. The thread of the next event gets the next CPU, round robin; the thread that had this CPU
is interrupted at its next instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtit.capture.events import EVENT_RECORD, EventKind
from rtit.capture.ptrace.recorder import INTERRUPT_ENTRY, PtraceRecorder, TracedThread
from rtit.perfdata import SwitchRecords
from rtit.registers import IA32_RTIT_CTL

if TYPE_CHECKING:
    from rtit.processor import Processor

_TRACE_EN = 1 << 0
_IDLE_THREAD = (0, 0)
_STEP = 1000
_TO_TARGET = frozenset(
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
_OUT = frozenset((EventKind.SYSCALL, EventKind.INTERRUPT, EventKind.FAULT, EventKind.SOFT_INT))


@dataclass(slots=True, eq=False)
class _CpuSlot:
    """A CPU; its thread, if it has one."""

    number: int
    cpu: Processor
    pending: bytearray
    thread: TracedThread | None = None
    last: tuple[int, int] = _IDLE_THREAD
    """pid and tid that a reader takes to be there."""


class SharedCpuRecorder(PtraceRecorder):
    """A `Recorder` whose threads share `cpus` CPUs.

    The writer's `switches` say how: with THREADS tracing is turned off and on at a switch, as perf
    does that traces threads; with WIDE it stays on, as where perf traces CPUs.
    """

    def __init__(self, *arguments: Any, cpus: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._slots = [_CpuSlot(number, *self._trace_unit(0)) for number in range(cpus)]
        self._turn = 0
        self._ips: dict[int, int] = {}
        self._seen = 0

    def feed(self, records: bytes, blobs: Sequence[bytes]) -> None:
        """Take one batch of capture events."""
        for start in range(0, len(records), EVENT_RECORD.size):
            one = records[start : start + EVENT_RECORD.size]
            kind, flags, length, tid, ip, target, clock, _ = EVENT_RECORD.unpack(one)
            if kind <= EventKind.SWITCH:
                self._place(self._threads[tid])
            super().feed(one, blobs)
            self._seen = clock
            if kind == EventKind.CONDITIONAL:
                self._ips[tid] = target if flags & 1 else ip + length
            elif kind in _TO_TARGET:
                self._ips[tid] = target
            elif kind in _OUT:
                self._ips.pop(tid, None)

    def flush(self) -> None:
        """Write what the CPUs have pending, and bring the file's size up to date."""
        tsc = self._time.tsc(self._now)
        for slot in self._slots:
            self._write(slot, tsc)
        self._writer.flush()

    def close(self) -> None:
        """End every thread that is still there, and the file. Again is harmless."""
        for slot in self._slots:
            self._write(slot, self._time.tsc(self._now))
        super().close()

    def _place(self, thread: TracedThread) -> None:
        if self._slot(thread) is not None:
            return
        self._turn += 1
        slot = self._slots[self._turn % len(self._slots)]
        cpu = slot.cpu
        threads = self._writer.switches is SwitchRecords.THREADS
        tick = self._tick * _STEP
        when = self._seen + self._ahead
        self._wait_until(cpu, when)
        before = slot.thread
        if before is not None and (ip := self._ips.get(before.tid)) is not None:
            cpu.interrupt(ip, INTERRUPT_ENTRY)
        ctl = cpu.get_msr(IA32_RTIT_CTL)
        if threads and ctl & _TRACE_EN:
            cpu.set_msr(IA32_RTIT_CTL, ctl & ~_TRACE_EN)
        self._ahead += 4 * tick
        after = (thread.pid, thread.tid)
        back = self._time.tsc(when + 3 * tick) - self._time.tsc(when + tick)
        left = slot.last if before is not None or not threads else _IDLE_THREAD
        first = not thread.enabled and thread.cpu is not cpu
        self._writer.switch(slot.number, self._time.tsc(when + tick), left, after, back)
        slot.thread, slot.last = thread, after
        thread.cpu = cpu
        cpu.at(when + 2 * tick)
        if first:
            self._writer.itrace_start(*after, self._time.tsc(when + 3 * tick))
        if not threads:
            thread.enabled = bool(ctl & _TRACE_EN)
        elif thread.enabled:
            self._enable(thread)
        ip = self._ips.get(thread.tid)
        if ip is not None:
            cpu.at(when + 4 * tick)
            cpu.resume(ip, bits=thread.bits)

    def _slot(self, thread: TracedThread) -> _CpuSlot | None:
        return next((slot for slot in self._slots if slot.thread is thread), None)

    def _write(self, slot: _CpuSlot, tsc: int) -> None:
        if slot.pending:
            data = bytes(slot.pending)
            slot.pending.clear()
            self._writer.auxtrace(-1, -1, data, None, tsc, cpu=slot.number)
            self.totals.pt_bytes += len(data)

    def _wait_until(self, cpu: Processor, clock: int) -> None:
        """Where perf traces CPUs, an idle one is traced, too."""
        if self._writer.switches is SwitchRecords.THREADS:
            super()._wait_until(cpu, clock)
        else:
            cpu.at(clock)

    # What a thread with a trace unit of its own would do

    def _begin(self, thread: TracedThread, clock: int) -> None:
        """It is traced once it has a CPU."""

    def _stop(self, thread: TracedThread, clock: int) -> None:
        slot = self._slot(thread)
        self._ips.pop(thread.tid, None)
        if slot is None:
            return
        slot.thread = None
        self._wait_until(slot.cpu, clock)
        if self._writer.switches is SwitchRecords.THREADS:
            slot.cpu.set_msr(IA32_RTIT_CTL, 0)
        else:
            gone = clock + _STEP * self._tick
            self._writer.switch(slot.number, self._time.tsc(gone), slot.last, _IDLE_THREAD)
            self._ahead += 2 * _STEP * self._tick
            slot.last = _IDLE_THREAD

    def _write_chunk(self, thread: TracedThread, clock: int) -> None:
        """The CPUs have it."""
