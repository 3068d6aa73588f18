"""Write the messages of the QEMU plugin about a whole system to perf.data and to the truth file.

The recording has one AUX buffer, of CPU 0. The code of each address space is that of a pseudo
process (`rtit.perfdata.system_processes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rtit.capture.events import EVENT_RECORD, EventKind
from rtit.capture.qemu.plugin_protocol import PluginMessage
from rtit.capture.qemu.sink import PluginSink
from rtit.capture.request import SizeLimits
from rtit.errors import RecordError
from rtit.image.kernel.boot_image import Symbol
from rtit.image.kernel.kernel_files import kallsyms_path
from rtit.perfdata import Writer
from rtit.perfdata.system_processes import cr3_of_process, process_of_page_table
from rtit.unit.time_model import TimeModel

_KERNEL_SPACE = 0xFFFF_FFFF
"""The address space of the kernel; others are page numbers of page tables."""
_CPU = 0
_IDLE_TASK = "swapper/0"
_KERNEL_PATH = "[kernel.kallsyms]_text"
_MODULE_ALIASES = frozenset(("init_module", "cleanup_module"))
"""Names that every module has for two of its functions, besides names of their own."""
_PAGE = 4096
_MAX_MODULE_SYMBOLS = 1 << 20
"""Symbols of modules that are written, of all loads together."""


class SystemRecordingSink(PluginSink):
    """Writes the messages of the plugin about a system to perf.data and to the truth file."""

    def __init__(
        self,
        writer: Writer,
        truth: Path | str | None,
        size_limits: SizeLimits | None = None,
        model: TimeModel | None = None,
        symbols: Sequence[Symbol] = (),
    ) -> None:
        super().__init__(writer, truth, size_limits, model)
        self._has_ended = False
        self._pending = bytearray()
        self._pending_module = bytearray()
        self._module_symbols = 0
        self._symbols = symbols
        self._task = (0, 0)
        self._names = {0: _IDLE_TASK}

    @property
    def all_threads_ended(self) -> bool:
        """Whether the recording has begun and ended."""
        return self.has_begun and self._has_ended

    def _process_message(self, message: bytes | memoryview) -> None:
        kind, flags, _, _, ip, target, clock, extra = EVENT_RECORD.unpack_from(message)
        blob = memoryview(message)[EVENT_RECORD.size :]
        self._last_clock = max(self._last_clock, clock)
        tsc = self._model.tsc(clock)
        if kind == PluginMessage.PACKETS:
            self._pending += blob
            if not flags:
                # A new bytearray: a writer that fails may keep a view of the old one.
                data, self._pending = self._pending, bytearray()
                self._store.add_packets(-1, -1, data, tsc, cpu=_CPU)
                self.totals.pt_bytes += len(data)
                self.totals.clock, self.totals.branches = target, extra
        elif kind == PluginMessage.TRUTH:
            self._write_truth(blob)
        elif kind == PluginMessage.TRACED:
            self.totals.traced_instructions = target
        elif kind == EventKind.CODE and not self.is_full:
            # Code that was there from the beginning has time 0.
            time = tsc if clock else 0
            if extra == _KERNEL_SPACE:
                self._writer.kernel_text_poke(time, ip, bytes(blob))
            else:
                pid = process_of_page_table(extra)
                self._writer.text_poke(pid, pid, time, ip, bytes(blob))
        elif kind == EventKind.THREAD:
            self.has_begun = True
            self.totals.threads = 1
            self._writer.comm(0, 0, tsc, _IDLE_TASK)
            self._writer.itrace_start(0, 0, tsc)
        elif kind == EventKind.MMAP:
            self._write_kernel(ip)
        elif kind == PluginMessage.MODULE:
            self._pending_module += blob
            if not flags:
                self._write_module(self._pending_module.decode(errors="replace"), tsc)
                self._pending_module.clear()
        elif kind == EventKind.COMM:
            self._switch_task(target, extra, tsc, bytes(blob).decode(errors="replace"))
        elif kind == EventKind.SWITCH:
            pid = process_of_page_table(target)
            self._switch_task(pid, pid, tsc, f"cr3 {cr3_of_process(pid):#x}")
        elif kind == EventKind.EXIT:
            self._has_ended = True
            self.totals.clock, self.totals.branches = target, extra
        elif kind == EventKind.WARNING:
            self.totals.warnings.append(bytes(blob).decode(errors="replace"))

    def _write_kernel(self, text: int) -> None:
        """Write the kernel's mapping and its symbols; it starts at address `text`."""
        linked = {name: address for address, _, name in self._symbols}
        moved = text - linked["_text"]
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

    def _switch_task(self, pid: int, tid: int, tsc: int, name: str) -> None:
        if self.is_full:
            return
        if self._names.get(tid) != name:
            self._names[tid] = name
            self._writer.comm(pid, tid, tsc, name)
        if (pid, tid) != self._task:
            self._writer.switch(_CPU, tsc, self._task, (pid, tid))
            self._task = (pid, tid)

    def write_snapshot(self) -> int:
        """Write a snapshot, if the recording takes snapshots; return its bytes of PT."""
        return self._write_snapshot(self._model.tsc(self._last_clock))

    def close(self) -> None:
        """Close the files. May be called again."""
        if not self._has_ended and self.has_begun:
            self.totals.warnings.append("QEMU was killed: the last instructions are missing")
        self._close_files(is_truth_complete=self._has_ended)
