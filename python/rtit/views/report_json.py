"""What `rtit report` says, as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rtit.views.processes import walk

if TYPE_CHECKING:
    from rtit.trace import Ended, Trace
    from rtit.views.crash import Crash
    from rtit.views.processes import Node
    from rtit.views.statistics import Statistics


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
