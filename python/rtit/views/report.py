"""The tree of processes: who started whom, how each ended, how much ran in it.

What `rtit report` says, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtit.trace import Ended, Process, Trace
    from rtit.views.statistics import Statistics, StreamStatistics
    from rtit.views.trace_tail import Crash


_DEEPEST = 20
"""Levels that are indented."""
_ALIKE = 4
"""So many processes without children that only their numbers tell apart are one line."""


@dataclass(slots=True, eq=False)
class Node:
    """A process with those that it started. `instructions` and `threads` are its own, `all_...`
    with its children's and theirs; instructions of CPUs' streams are nobody's: None.
    """

    process: Process
    instructions: int | None = 0
    all_instructions: int | None = 0
    all_threads: int = 0
    children: list[Node] = field(default_factory=list)

    @property
    def threads(self) -> int:
        """How many it ever had."""
        return len(self.process.threads)

    @property
    def called(self) -> tuple[str, str]:
        """Its name, and how it ended; "" where that is not known."""
        ended = self.process.ended
        if ended is None:
            return self.process.name, ""
        thread = f"in thread {ended.tid}: " if ended.tid != ended.pid else ""
        return self.process.name, f"{thread}{ended.ending}"


def processes(trace: Trace, streams: Iterable[StreamStatistics]) -> list[Node]:
    """The roots of the tree over the processes of these streams, in the order of the recording.

    Processes of which nothing was traced are there if one of their children is, and, where the
    streams are all there are, if it is known how they ended. A number that was used for several
    processes in turn has one stream a thread: the last of them is taken to have run it.
    """
    counted: dict[int, int] = {}
    by_cpu, whole = False, 0
    for each in streams:
        counted[each.pid] = counted.get(each.pid, 0) + each.instructions
        by_cpu |= each.cpu >= 0
        whole += 1
    everything = whole == len(trace.select())
    nodes: dict[Process, Node] = {process: Node(process) for process in trace.processes}
    last = {process.pid: process for process in nodes}
    roots: list[Node] = []
    for process, node in reversed(nodes.items()):
        own = counted.get(process.pid) if last[process.pid] is process else None
        node.instructions = None if by_cpu else own or 0
        node.all_threads += node.threads
        node.all_instructions = (
            None if by_cpu else (node.all_instructions or 0) + (node.instructions or 0)
        )
        node.children.reverse()
        known = everything and (process.traced or process.ended is not None)
        if own is None and not known and not node.children:
            continue
        if process.parent is None:
            roots.append(node)
            continue
        above = nodes[process.parent]
        above.children.append(node)
        above.all_threads += node.all_threads
        if not by_cpu:
            above.all_instructions = (above.all_instructions or 0) + (node.all_instructions or 0)
    return roots[::-1]


def size(roots: Iterable[Node]) -> int:
    """How many processes there are."""
    return sum(1 for _ in walk(roots))


def walk(roots: Iterable[Node]) -> Iterable[Node]:
    """Every node, a parent before its children."""
    left = list(roots)[::-1]
    while left:
        node = left.pop()
        yield node
        left.extend(reversed(node.children))


def lines(roots: Sequence[Node]) -> Iterable[str]:
    """The tree as text: a heading, a line each process, and the totals. Processes without children
    that are alike but for their numbers share a line.
    """
    yield f"{'instructions':>14} {'with children':>15} {'threads':>8}  process"
    left: list[tuple[int, list[Node]]] = [(0, group) for group in _alike(roots)][::-1]
    while left:
        level, group = left.pop()
        own = _sum(node.instructions for node in group)
        total = _sum(node.all_instructions for node in group)
        threads = sum(node.threads for node in group)
        name, how = group[0].called
        title = f"{group[0].process.pid} {name}".rstrip()
        if len(group) > 1:
            pids = f"({group[0].process.pid}..{group[-1].process.pid})"
            title = " ".join(filter(None, (f"{len(group):,} x", name, pids)))
        title = "  " * min(level, _DEEPEST) + title + (f": {how}" if how else "")
        yield f"{_count(own):>14} {_count(total):>15} {threads:8,}  {title}"
        if len(group) == 1:
            left.extend((level + 1, each) for each in reversed(_alike(group[0].children)))
    total = _sum(node.all_instructions for node in roots)
    threads = sum(node.all_threads for node in roots)
    yield f"{_count(total):>14} {'':15} {threads:8,}  in all {size(roots):,} processes"


def _alike(nodes: Sequence[Node]) -> list[list[Node]]:
    """The nodes in the order of the recording, those that are alike together."""
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        key: object = node if node.children else node.called
        groups.setdefault(key, []).append(node)
    found: list[list[Node]] = []
    for group in groups.values():
        found.extend([group] if len(group) >= _ALIKE else [[node] for node in group])
    order = {node: place for place, node in enumerate(nodes)}
    return sorted(found, key=lambda group: order[group[0]])


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [each for each in counts if each is not None]
    return sum(known) if known else None


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def report_json(
    trace: Trace, found: Statistics, roots: Iterable[Node], faults: Iterable[Crash], calls: int
) -> dict[str, Any]:
    """One object, whole, with `Lines` as lists; of each fault the last `calls` calls."""
    return {
        "file": trace.path,
        "command": trace.command_line,
        "facts": trace.facts,
        "incomplete": trace.incomplete,
        "endings": [_ended(each) for each in trace.endings],
        "faults": [_fault(each, calls) for each in faults],
        "instructions": found.instructions,
        "missing": found.missing,
        "processes": [_process(node) for node in walk(roots)],
        "streams": [
            {
                "title": each.title,
                "pid": each.pid,
                "instructions": each.instructions,
                "branches": each.branches,
                "pt_bytes": each.pt_bytes,
                "exact_bytes": each.exact_bytes,
                "losses": each.losses,
                "unsure": {"switches": each.unsure[0], "instructions": each.unsure[1]},
                "repeats": each.repeats,
                "missing": each.missing,
                "threads": dict(each.shares),
            }
            for each in found.streams
        ],
        "functions": [
            {"function": name, "module": module, "instructions": count}
            for (name, module), count in found.functions.most_common()
        ],
        "image_problems": [str(problem) for problem in trace.image_problems],
    }


def _ended(each: Ended) -> dict[str, Any]:
    fault = each.ending.fault
    return {
        "pid": each.pid,
        "tid": each.tid,
        "time": each.time,
        "exit_code": each.ending.exit_code,
        "signal": each.ending.signal,
        "fault": fault and {"ip": fault.ip, "code": fault.code, "address": fault.address},
    }


def _fault(each: Crash, calls: int) -> dict[str, Any]:
    function, offset, module = each.function
    number, name = each.signal
    file, line = each.place or (None, None)
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
        "instruction": each.assembly,
        "last_calls": [{"from": caller, "to": called} for caller, called in each.calls(calls)],
    }


def _process(node: Node) -> dict[str, Any]:
    process = node.process
    ended = process.ended
    return {
        "pid": process.pid,
        "parent": process.parent.pid if process.parent is not None else None,
        "name": process.name,
        "since": process.since,
        "exit_code": ended.ending.exit_code if ended is not None else None,
        "signal": ended.ending.signal if ended is not None else None,
        "threads": node.threads,
        "instructions": node.instructions,
        "threads_with_children": node.all_threads,
        "instructions_with_children": node.all_instructions,
    }
