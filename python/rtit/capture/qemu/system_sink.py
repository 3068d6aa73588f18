"""Write the messages of the QEMU plugin about a whole system to perf.data and to the truth file.

The recording has an AUX buffer for each processor of the system. The code of each address space is
that of a pseudo process (`rtit.perfdata.system_processes`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rtit.capture.events import EVENT_RECORD, EventFlag, EventKind
from rtit.capture.qemu.guest_programs import GuestPrograms
from rtit.capture.qemu.plugin_protocol import PluginMessage
from rtit.capture.qemu.sink import PluginSink
from rtit.capture.request import SizeLimits
from rtit.errors import RecordError
from rtit.image.kernel.boot_image import Symbol
from rtit.image.kernel.kernel_files import kallsyms_path
from rtit.perfdata import Writer
from rtit.perfdata.filters import AddressFilter, format_address_filters
from rtit.perfdata.log_comparisons import FACT, LogComparison, format_comparisons
from rtit.perfdata.system_processes import cr3_of_process, process_of_page_table
from rtit.unit.time_model import TimeModel

_KERNEL_SPACE = 0xFFFF_FFFF
"""The address space of the kernel; others are page numbers of page tables."""
_IDLE_TASK = "swapper"
"""The name of thread 0, the idle thread of each processor."""
_KERNEL_PATH = "[kernel.kallsyms]_text"
_MODULE_ALIASES = frozenset(("init_module", "cleanup_module"))
"""Names that every module has for two of its functions, besides names of their own."""
_PAGE = 4096
_MAX_MODULE_SYMBOLS = 1 << 20
"""Symbols of modules that are written, of all loads together."""


@dataclass(slots=True)
class _Processor:
    packets: bytearray = field(default_factory=bytearray)
    """Packets of an incomplete sequence of messages."""
    truth: bytearray = field(default_factory=bytearray)
    """Records of an incomplete sequence of messages."""
    module: bytearray = field(default_factory=bytearray)
    """Symbols of a module, of an incomplete sequence of messages."""
    retired: int = 0
    branches: int = 0
    task: tuple[int, int] = (0, 0)
    """The pid and tid of the thread that runs."""
    has_ended: bool = False


class SystemRecordingSink(PluginSink):
    """Writes the messages of the plugin about a system to perf.data and to the truth file."""

    def __init__(
        self,
        writer: Writer,
        truth: Path | str | None,
        size_limits: SizeLimits | None = None,
        model: TimeModel | None = None,
        symbols: Sequence[Symbol] = (),
        initrd: Path | None = None,
        filters: Sequence[AddressFilter] = (),
    ) -> None:
        super().__init__(writer, truth, size_limits, model)
        self._programs = GuestPrograms(writer, initrd)
        self._processors: list[_Processor] = []
        self._symbols = symbols
        self._filters = filters
        self._module_symbols = 0
        self._names = {0: _IDLE_TASK}
        self._comparisons: dict[str, LogComparison] = {}

    @property
    def all_threads_ended(self) -> bool:
        """Whether the recording has begun, and that of each processor has ended."""
        return self.has_begun and all(each.has_ended for each in self._processors)

    def _process_message(self, message: bytes | memoryview) -> None:
        kind, flags, _, cpu, ip, target, clock, extra = EVENT_RECORD.unpack_from(message)
        blob = memoryview(message)[EVENT_RECORD.size :]
        self._last_clock = max(self._last_clock, clock)
        tsc = self._model.tsc(clock)
        if kind == PluginMessage.PACKETS:
            processor = self._processors[cpu]
            processor.packets += blob
            if not flags & EventFlag.PACKETS_CONTINUE:
                # A new bytearray: a writer that fails may keep a view of the old one.
                data, processor.packets = processor.packets, bytearray()
                self._store.add_packets(-1, -1, data, tsc, cpu=cpu)
                self.totals.pt_bytes += len(data)
                self._update_counts(processor, target, extra)
        elif kind == PluginMessage.TRUTH:
            processor = self._processors[cpu]
            processor.truth += blob
            if not flags & EventFlag.PACKETS_CONTINUE:
                self._write_truth(processor.truth)
                processor.truth = bytearray()
        elif kind == PluginMessage.TRACED:
            self.totals.traced_instructions += target
            self.totals.traced_branches += extra
        elif kind == EventKind.CODE and not self.is_full:
            # Code that was there from the beginning has time 0.
            time = tsc if clock else 0
            if extra == _KERNEL_SPACE:
                self._writer.kernel_text_poke(time, ip, bytes(blob))
            else:
                pid = process_of_page_table(extra)
                self._writer.text_poke(pid, pid, time, ip, bytes(blob))
                self._programs.check_code(extra, ip, bytes(blob))
        elif kind == EventKind.THREAD:
            # The plugin announces all processors, in order, before it runs any.
            self.has_begun = True
            self._processors.append(_Processor())
            self.totals.threads += 1
            if not cpu:
                self._writer.comm(0, 0, tsc, _IDLE_TASK)
            self._writer.itrace_start(0, 0, tsc, cpu)
        elif kind == EventKind.MMAP:
            self._write_kernel(ip)
        elif kind == PluginMessage.MODULE:
            processor = self._processors[cpu]
            processor.module += blob
            if not flags & EventFlag.PACKETS_CONTINUE:
                self._write_module(processor.module.decode(errors="replace"), tsc)
                processor.module.clear()
        elif kind == PluginMessage.MAPPING and not self.is_full:
            thread, file = self._processors[cpu].task, os.fsdecode(bytes(blob))
            self._programs.add_mapping(tsc, thread, target, ip, extra, file)
        elif kind == PluginMessage.NEW_PROCESS and not self.is_full:
            self._programs.start_process(tsc, target, ip, self._processors[cpu].task)
        elif kind == PluginMessage.THREAD_NAME and not self.is_full:
            is_exec = bool(flags & EventFlag.COMM_BY_EXEC)
            name = bytes(blob).decode(errors="replace")
            self._set_name((target, extra), tsc, name, is_exec=is_exec)
            if is_exec:
                self._programs.begin_program(tsc, target, ip)
        elif kind == EventKind.COMM:
            name = bytes(blob).decode(errors="replace") if extra else _IDLE_TASK
            self._switch_task(cpu, (target, extra), tsc, name)
        elif kind == EventKind.SWITCH:
            pid = process_of_page_table(target)
            self._switch_task(cpu, (pid, pid), tsc, f"cr3 {cr3_of_process(pid):#x}")
        elif kind == EventKind.EXIT:
            processor = self._processors[cpu]
            processor.has_ended = True
            self._update_counts(processor, target, extra)
        elif kind == PluginMessage.COMPARED:
            name = bytes(blob).decode(errors="replace")
            _, count, differences = self._comparisons.get(name, LogComparison(name, 0, 0))
            self._comparisons[name] = LogComparison(name, count + target, differences + extra)
        elif kind == EventKind.WARNING:
            self.totals.warnings.append(bytes(blob).decode(errors="replace"))

    def _write_kernel(self, text: int) -> None:
        """Write the kernel's mapping and its symbols; it starts at address `text`."""
        linked = {name: address for address, _, name in self._symbols}
        moved = text - linked["_text"]
        expression = format_address_filters(each.moved(moved) for each in self._filters)
        if expression is not None:
            self._writer.replace_filter(expression)
        size = linked.get("_end", linked["_text"] + 1) - linked["_text"]
        self._writer.kernel_mmap(text, size, text, _KERNEL_PATH)
        lines = [
            f"{address + moved if address >= linked['_text'] else address:016x} {kind} {name}\n"
            for address, kind, name in self._symbols
        ]
        self._write_symbols(lines, "w")

    def _write_module(self, text: str, tsc: int) -> None:
        """Write the mappings of a module and its symbols; `text` is that of the plugin's message.

        Raises ValueError if the text has another form.
        """
        name, *rows = text.splitlines()
        self._module_symbols += len(rows)
        if self.is_full or self._module_symbols > _MAX_MODULE_SYMBOLS:
            return
        lines = []
        ranges: list[tuple[int, int]] = []
        named = Counter(row.split(" ", 1)[0] for row in rows)
        for row in sorted(rows):
            address, size, kind, symbol = row.split(" ", 3)
            start, end = int(address, 16), int(address, 16) + int(size, 16)
            if symbol not in _MODULE_ALIASES or named[address] == 1:
                lines.append(f"{start:016x} {kind} {symbol}\t[{name}]\n")
            # A module has pages of its own.
            first, last = start & -_PAGE, (end + _PAGE - 1) & -_PAGE
            if ranges and first <= ranges[-1][1]:
                ranges[-1] = ranges[-1][0], max(ranges[-1][1], last)
            else:
                ranges.append((first, last))
        for first, last in ranges:
            self._writer.kernel_mmap(first, last - first, first, f"[{name}]", tsc)
        self._write_symbols(lines, "a")

    def _write_symbols(self, lines: list[str], mode: str) -> None:
        path = kallsyms_path(self._writer.path)
        try:
            with Path(path).open(mode, encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror}") from error

    def _update_counts(self, processor: _Processor, retired: int, branches: int) -> None:
        self.totals.clock += retired - processor.retired
        self.totals.branches += branches - processor.branches
        processor.retired, processor.branches = retired, branches

    def _switch_task(self, cpu: int, task: tuple[int, int], tsc: int, name: str) -> None:
        if self.is_full:
            return
        self._set_name(task, tsc, name)
        processor = self._processors[cpu]
        if task != processor.task:
            self._writer.switch(cpu, tsc, processor.task, task)
            processor.task = task

    def _set_name(
        self, task: tuple[int, int], tsc: int, name: str, *, is_exec: bool = False
    ) -> None:
        pid, tid = task
        if is_exec or self._names.get(tid) != name:
            self._names[tid] = name
            self._writer.comm(pid, tid, tsc, name, by_exec=is_exec)

    def write_snapshot(self) -> int:
        """Write a snapshot, if the recording takes snapshots; return its bytes of PT."""
        return self._write_snapshot(self._model.tsc(self._last_clock))

    def close(self) -> None:
        """Close the files. May be called again."""
        has_ended = self.all_threads_ended
        if not has_ended and self.has_begun:
            self.totals.warnings.append("QEMU was killed: the last instructions are missing")
        self._programs.write_files()
        if self._programs.problem is not None:
            self.totals.warnings.append(self._programs.problem)
        comparisons = self._comparisons.values()
        self.totals.warnings += [
            f"{each.name} differs in {each}" for each in comparisons if each.differences
        ]
        facts = {}
        if comparisons:
            facts[FACT] = format_comparisons(comparisons)
        self._close_files(is_truth_complete=has_ended, facts=facts)
