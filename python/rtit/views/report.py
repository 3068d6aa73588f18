"""The processes of `rtit report` as a tree of text, and the report as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtit.trace import Call, FunctionTotals, Process, ProcessExit, Trace
    from rtit.views.statistics import RecordingStatistics, StreamStatistics
    from rtit.views.trace_tail import ProcessCrash

_MAX_INDENT = 20
"""Levels of the tree that are indented."""
_MAX_STACK = 1024
_MIN_GROUP = 4
"""At least so many processes that differ by their pid only, and have no children, share a line."""


@dataclass(slots=True, eq=False)
class ProcessNode:
    """A process and the processes that it started.

    `instructions` and `threads` count the process alone; `total_...` include its descendants.
    Counts of instructions are None if the trace has a stream per CPU: rows of a CPU are not split
    by process.
    """

    process: Process
    instructions: int | None = 0
    total_instructions: int | None = 0
    total_threads: int = 0
    children: list[ProcessNode] = field(default_factory=list)

    @property
    def threads(self) -> int:
        """Number of threads that the process ever had."""
        return len(self.process.threads)

    @property
    def name_and_exit(self) -> tuple[str, str]:
        """Name, and how the process ended; "" if that is unknown."""
        ended = self.process.exit
        if ended is None:
            return self.process.name, ""
        thread = f"in thread {ended.tid}: " if ended.tid != ended.pid else ""
        return self.process.name, f"{thread}{ended.exit_status}"


def process_tree(trace: Trace, streams: Iterable[StreamStatistics]) -> list[ProcessNode]:
    """Return the root processes of these streams, in the order of the recording.

    A process without a stream is included if a descendant has one, or, if these are all streams of
    the recording, if its end is known. If several processes had one pid in succession, the
    instructions count for the last of them.
    """
    counted: dict[int, int] = {}
    is_per_cpu, stream_count = False, 0
    for each in streams:
        counted[each.pid] = counted.get(each.pid, 0) + each.instructions
        is_per_cpu |= each.cpu >= 0
        stream_count += 1
    is_whole_recording = stream_count == len(trace.select())
    nodes: dict[Process, ProcessNode] = {
        process: ProcessNode(process) for process in trace.processes
    }
    last = {process.pid: process for process in nodes}
    roots: list[ProcessNode] = []
    for process, node in reversed(nodes.items()):
        instructions = counted.get(process.pid) if last[process.pid] is process else None
        node.instructions = None if is_per_cpu else instructions or 0
        node.total_threads += node.threads
        node.total_instructions = (
            None if is_per_cpu else (node.total_instructions or 0) + (node.instructions or 0)
        )
        node.children.reverse()
        known = is_whole_recording and (process.is_traced or process.exit is not None)
        if instructions is None and not known and not node.children:
            continue
        if process.parent is None:
            roots.append(node)
            continue
        parent = nodes[process.parent]
        parent.children.append(node)
        parent.total_threads += node.total_threads
        if not is_per_cpu:
            parent.total_instructions = (parent.total_instructions or 0) + (
                node.total_instructions or 0
            )
    return roots[::-1]


def count_processes(roots: Iterable[ProcessNode]) -> int:
    """Return the number of processes in the tree."""
    return sum(1 for _ in walk_tree(roots))


def walk_tree(roots: Iterable[ProcessNode]) -> Iterable[ProcessNode]:
    """Iterate over all nodes, parents before children."""
    left = list(roots)[::-1]
    while left:
        node = left.pop()
        yield node
        left.extend(reversed(node.children))


def format_tree(roots: Sequence[ProcessNode]) -> Iterable[str]:
    """Return the lines of the tree: a heading, processes, and totals.

    Similar processes without children share a line.
    """
    yield f"{'instructions':>14} {'with children':>15} {'threads':>8}  process"
    left: list[tuple[int, list[ProcessNode]]] = [(0, group) for group in _group_similar(roots)][
        ::-1
    ]
    while left:
        level, group = left.pop()
        instructions = _sum_known_counts(node.instructions for node in group)
        total = _sum_known_counts(node.total_instructions for node in group)
        threads = sum(node.threads for node in group)
        name, exit_text = group[0].name_and_exit
        title = f"{group[0].process.pid} {name}".rstrip()
        if len(group) > 1:
            pids = f"({group[0].process.pid}..{group[-1].process.pid})"
            title = " ".join(filter(None, (f"{len(group):,} x", name, pids)))
        title = "  " * min(level, _MAX_INDENT) + title + (f": {exit_text}" if exit_text else "")
        yield f"{_format_count(instructions):>14} {_format_count(total):>15} {threads:8,}  {title}"
        if len(group) == 1:
            left.extend((level + 1, each) for each in reversed(_group_similar(group[0].children)))
    total = _sum_known_counts(node.total_instructions for node in roots)
    threads = sum(node.total_threads for node in roots)
    processes = count_processes(roots)
    yield f"{_format_count(total):>14} {'':15} {threads:8,}  in all {processes:,} processes"


def _group_similar(nodes: Sequence[ProcessNode]) -> list[list[ProcessNode]]:
    """Group nodes that differ by their pid only, in the order of the recording."""
    groups: dict[object, list[ProcessNode]] = {}
    for node in nodes:
        key: object = node if node.children else node.name_and_exit
        groups.setdefault(key, []).append(node)
    found: list[list[ProcessNode]] = []
    for group in groups.values():
        found.extend([group] if len(group) >= _MIN_GROUP else [[node] for node in group])
    order = {node: position for position, node in enumerate(nodes)}
    return sorted(found, key=lambda group: order[group[0]])


def _sum_known_counts(counts: Iterable[int | None]) -> int | None:
    known = [each for each in counts if each is not None]
    return sum(known) if known else None


def _format_count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def report_json(
    trace: Trace,
    found: RecordingStatistics,
    roots: Iterable[ProcessNode],
    faults: Iterable[ProcessCrash],
    calls: int,
) -> dict[str, Any]:
    """Return the report as one JSON object, with the last `calls` calls before each fault, and at
    most 1024 that had not returned.
    """
    return {
        "file": trace.path,
        "command": trace.command_line,
        "facts": trace.facts,
        "incomplete": trace.incomplete,
        "endings": [_exit_json(each) for each in trace.endings],
        "faults": [_crash_json(each, calls) for each in faults],
        "instructions": found.instructions,
        "missing": found.instructions_in_no_function,
        "processes": [_process_json(node) for node in walk_tree(roots)],
        "streams": [
            {
                "title": each.title,
                "pid": each.pid,
                "instructions": each.instructions,
                "branches": each.branches,
                "pt_bytes": each.pt_bytes,
                "exact_bytes": each.exact_bytes,
                "losses": each.losses,
                "unsure": {"switches": each.ambiguous[0], "instructions": each.ambiguous[1]},
                "repeats": each.unknown_loops,
                "missing": each.unattributed,
                "threads": dict(each.thread_instructions),
            }
            for each in found.streams
        ],
        "functions": [
            {"function": name, "module": module, "instructions": count}
            for (name, module), count in found.functions.most_common()
        ],
        "image_problems": [str(problem) for problem in trace.image_problems],
    }


def sort_functions(
    functions: Mapping[tuple[str, str], FunctionTotals], key: str
) -> list[tuple[tuple[str, str], FunctionTotals]]:
    """Return the functions with the most instructions ("self" or "total") or "calls" first."""
    columns = {"self": "self_instructions", "total": "total_instructions", "calls": "calls"}
    column = columns[key]
    return sorted(functions.items(), key=lambda row: (-getattr(row[1], column), row[0]))


def calls_json(
    functions: Mapping[tuple[str, str], FunctionTotals], key: str
) -> list[dict[str, Any]]:
    """Return the calls of each function as JSON objects, in the order of `sort_functions`."""
    return [
        {
            "function": name,
            "module": module,
            "calls": row.calls,
            "self": row.self_instructions,
            "total": row.total_instructions,
        }
        for (name, module), row in sort_functions(functions, key)
    ]


def _exit_json(each: ProcessExit) -> dict[str, Any]:
    fault = each.exit_status.fault
    return {
        "pid": each.pid,
        "tid": each.tid,
        "time": each.time,
        "exit_code": each.exit_status.exit_code,
        "signal": each.exit_status.signal,
        "fault": fault and {"ip": fault.ip, "code": fault.code, "address": fault.address},
    }


def _crash_json(each: ProcessCrash, calls: int) -> dict[str, Any]:
    function, offset, module = each.function_with_offset
    number, name = each.signal
    found = each.calls_at_end(calls)
    file, line = each.source_line or (None, None)
    return {
        "pid": each.pid,
        "tid": each.tid,
        "time": each.time,
        "signal": number,
        "name": name,
        "ip": each.ip,
        "address": each.address,
        "si_code": each.code,
        "function": function or None,
        "offset": offset,
        "module": module or None,
        "file": file,
        "line": line,
        "instruction": each.disassembled_instruction,
        "call_stack": [_call_json(each, call) for call in found.running[:_MAX_STACK]],
        "last_calls": [_call_json(each, call) for call in found.last],
    }


def _call_json(crash: ProcessCrash, call: Call) -> dict[str, Any]:
    return {
        "from": crash.call_site(call) or None,
        "to": crash.callee(call),
        "kind": call.kind.label,
    }


def _process_json(node: ProcessNode) -> dict[str, Any]:
    process = node.process
    ended = process.exit
    return {
        "pid": process.pid,
        "parent": process.parent.pid if process.parent is not None else None,
        "name": process.name,
        "since": process.start,
        "exit_code": ended.exit_status.exit_code if ended is not None else None,
        "signal": ended.exit_status.signal if ended is not None else None,
        "threads": node.threads,
        "instructions": node.instructions,
        "threads_with_children": node.total_threads,
        "instructions_with_children": node.total_instructions,
    }
