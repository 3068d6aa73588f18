"""A recorded process as a gdb target: threads, registers, memory, branch traces.

Only the program counter is known at the end of a recording. It is taken from the fault that ended
the process, from the events after the last row, from the last branch, or it is the instruction
after the last one that executed.
"""

from __future__ import annotations

import os
import signal
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from rtit.errors import RtitError, UnsupportedError, UsageError
from rtit.gdb import qxfer_objects
from rtit.gdb.recorded_program import RecordedProgram
from rtit.gdb.thread_path import ThreadPath, ip_after_instruction
from rtit.text_escaping import escape_control_characters
from rtit.trace import CallKind
from rtit.views.calls_at_end import DECODED_BYTES, calls_at_end
from rtit.views.trace_tail import ProcessCrash, find_crashes

if TYPE_CHECKING:
    from rtit.trace import Stream, Trace

_MAX_PATHS = 8
"""Decoded paths that are kept."""
_MAX_CALLERS = 1024
_SIGTRAP = 5
_GDB_SIGNALS: dict[int, int] = {signal.SIGBUS: 10, signal.SIGSYS: 12}
"""Signals of faults that gdb and Linux number differently."""


class GdbTarget:
    """The threads of one process.

    `trace_format` is "pt" (PT packets, if the thread has a stream of its own) or "bts" (decoded
    runs of instructions). gdb gets the last `max_instructions` of each thread, or some more.
    `report` is called with messages for the user.

    `tid` is the selected thread; by default the one that crashed, else the first. Raises UsageError
    if there is no such thread, UnsupportedError for raw PT.
    """

    def __init__(
        self,
        trace: Trace,
        tid: int | None = None,
        *,
        trace_format: str = "pt",
        max_instructions: int,
        report: Callable[[str], None],
    ) -> None:
        streams = [each for each in trace.threads if each.tid > 0]
        if not streams:
            why = f" (incomplete: {trace.incomplete})" if trace.incomplete else ""
            raise UnsupportedError(f"{trace.path}: the traced threads are unknown{why}")
        crashes = find_crashes(trace, streams)
        if tid is None:
            tid = crashes[0].tid if crashes else streams[0].tid
        thread_streams = [each for each in streams if each.tid == tid]
        if not thread_streams:
            tids = ", ".join(map(str, dict.fromkeys(each.tid for each in streams)))
            raise UsageError(f"there is no thread {tid}; the threads are {tids}")
        self._crashes: dict[int, ProcessCrash] = {each.tid: each for each in crashes}
        self.pid, self.tid = thread_streams[-1].pid, tid
        self.threads: dict[int, list[Stream]] = {}
        for each in streams:
            if each.pid == self.pid:
                self.threads.setdefault(each.tid, []).append(each)
        self.trace = trace
        self._trace_format, self._max_instructions, self._report = (
            trace_format,
            max_instructions,
            report,
        )
        self._paths: OrderedDict[int, ThreadPath] = OrderedDict()
        self._next_ip_in_memory: dict[int, int | None] = {}
        self._next_traced_ip: dict[int, int | None] = {}
        self._left_traced_code: set[int] = set()
        self._reported: set[int] = set()
        self.gaps: set[int] = set()
        """Decoded threads in which execution may be missing."""
        names = {process.pid: process.name for process in trace.processes}
        self.program = RecordedProgram(trace.images, self.pid, names.get(self.pid, ""))
        self._start_time = trace.images.mappings(self.pid).program_start

    def thread_name(self, tid: int) -> str:
        """Return the name of a thread; "" if it is unknown."""
        return self.threads[tid][-1].name or ""

    def thread_path(self, tid: int) -> ThreadPath:
        """Return the last part of a thread's path. Raises what decoding raises."""
        if tid in self._paths:
            self._paths.move_to_end(tid)
            return self._paths[tid]
        path = self._paths[tid] = ThreadPath(
            self.threads[tid], self._max_instructions, self._start_time
        )
        if path.gap_count:
            self.gaps.add(tid)
        if len(self._paths) > _MAX_PATHS:
            self._paths.popitem(last=False)
        self._next_traced_ip[tid] = path.next_ip
        if path.left_traced_code:
            self._left_traced_code.add(tid)
        if path.ends_with_transfer and path.next_ip is None:
            self._next_ip_in_memory[tid] = path.last_branch_target()
        else:
            self._next_ip_in_memory[tid] = (
                ip_after_instruction(self.program.image, int(path.last[-1]))
                if len(path.last)
                else None
            )
        return path

    def last_ip(self, tid: int) -> int | None:
        """Return the IP at the end of the recording; None if it is unknown."""
        if (crash := self.fault_of_thread(tid)) is not None:
            return crash.ip
        next_traced_ip = self._next_traced_ip[tid]
        return next_traced_ip if next_traced_ip is not None else self._next_ip_in_memory[tid]

    def fault_of_thread(self, tid: int) -> ProcessCrash | None:
        """Return the fault of the thread, if its trace reaches the fault."""
        if tid not in self._next_ip_in_memory:
            self.thread_path(tid)
        fault = self._crashes.get(tid)
        return fault if fault is not None and self._does_trace_end_at(tid, fault.ip) else None

    def _does_trace_end_at(self, tid: int, ip: int) -> bool:
        next_traced_ip = self._next_traced_ip[tid]
        if next_traced_ip is not None:
            return next_traced_ip == ip
        return tid not in self._left_traced_code and "stopped" not in self.trace.facts

    def stop_signal(self, tid: int) -> int:
        """Return why the thread stopped, as a signal number of gdb."""
        crash = self.fault_of_thread(tid)
        number = crash.signal[0] if crash is not None else _SIGTRAP
        return _GDB_SIGNALS.get(number, number)

    def register_values(self, tid: int) -> list[str]:
        """Return the values of all registers, as `qxfer_objects.register_values` does."""
        return qxfer_objects.register_values(self.last_ip(tid))

    def return_addresses(self, tid: int) -> list[int]:
        """Return where the callers of the running function continue, the innermost first.

        At most 1024. Ends at a caller that is unknown.
        """
        path = self.thread_path(tid)
        stream, sync_point = path.last_stream, path.sync_point
        shown = stream.size - sync_point.offset if sync_point is not None else 0
        # Other streams of the thread can have newer returns from calls that began before.
        since = stream.last_interval_start if len(path.streams) > 1 else 0
        found: list[int] = []
        calls = calls_at_end(
            self.trace, stream, decoded_bytes=max(shown, DECODED_BYTES), since=since
        )
        for call in calls.running:
            if call.kind == CallKind.TAIL:
                continue  # returns for its caller
            address: int | None = call.call_site
            if call.kind == CallKind.CALL:
                address = ip_after_instruction(self.program.image, call.call_site, call.begin_time)
            if not address or len(found) == _MAX_CALLERS:
                break
            found.append(address)
        return found

    def sends_packets(self, tid: int) -> bool:
        """Return whether gdb gets packets of the thread, not blocks."""
        return self._trace_format == "pt" and self.thread_path(tid).sync_point is not None

    def btrace_configuration(self, tid: int) -> str:
        """Return the qXfer object that describes the trace of a thread."""
        streams = self.threads[tid]
        is_alone = len(streams) == 1 and streams[0].thread_scope is None
        trace_format = "pt" if self._trace_format == "pt" and is_alone else "bts"
        return qxfer_objects.trace_configuration(trace_format, sum(each.size for each in streams))

    def branch_trace(self, tid: int) -> str:
        """Return the qXfer object with a thread's branch trace. Raises what decoding raises."""
        path = self.thread_path(tid)
        self.report_path_extent(tid)
        if self.sends_packets(tid):
            settings = self.threads[tid][0].settings
            cpu = None if isinstance(settings, RtitError) else settings.cpu
            return qxfer_objects.branch_trace_of_packets(path.packets_from_sync_point(), cpu)
        pc = self.last_ip(tid)
        is_next = pc is not None and pc == self._next_ip_in_memory[tid]
        return qxfer_objects.branch_trace_of_blocks(
            path, pc, is_contiguous=is_next and not path.ends_with_transfer
        )

    def qxfer_object(self, name: str) -> bytes | None:
        """Return a qXfer object that all threads share; None for other names."""
        match name:
            case "features":
                return qxfer_objects.target_description().encode()
            case "auxv":
                return self.program.build_auxiliary_vector()
            case "libraries-svr4":
                return qxfer_objects.library_list(self.program).encode()
            case "exec-file":
                main = self.program.main
                return os.fsencode(main.path) if main is not None else None
            case "threads":
                return qxfer_objects.thread_list(
                    (tid, self.thread_name(tid)) for tid in self.threads
                ).encode()
        return None

    def report_path_extent(self, tid: int) -> None:
        """Report once how much of a thread's path gdb gets. Raises what decoding raises."""
        if tid in self._reported:
            return
        self._reported.add(tid)
        path = self.thread_path(tid)
        sends_packets = self.sends_packets(tid)
        sent, total = path.instruction_count_for_gdb(packets=sends_packets), path.instructions
        amount = f"all {total:,}" if sent >= total else f"the last {sent:,} of {total:,}"
        if not path.is_whole:
            amount = f"the last {sent:,}"
        fault = self._crashes.get(tid)
        if fault is None:
            ending = ""
        elif self.fault_of_thread(tid) is not None:
            ending = f", to {escape_control_characters(fault.ending)}"
        else:
            signal_text = escape_control_characters(fault.ending)
            ending = f"; {signal_text} followed, and the code before it was not traced"
        reason = ", as blocks: its packets are mixed with those of other threads"
        if sends_packets or self._trace_format == "bts":
            reason = ""
        name = (
            f" ({escape_control_characters(self.thread_name(tid))})"
            if self.thread_name(tid)
            else ""
        )
        self._report(f"thread {tid}{name}: {amount} instructions{ending}{reason}")
        if path.gap_count:
            places = "1 place" if path.gap_count == 1 else f"{path.gap_count:,} places"
            self._report(f"thread {tid}: something is missing in {places}")
