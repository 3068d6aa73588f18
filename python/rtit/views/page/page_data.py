"""The data of the page: plain values, as JSON has them, with the names escaped.

A part that would be too large is cut by the rule that its `note` states, so that a page is smaller
than 15 MB. All parts together need three passes over the recording, and one for the timeline.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rtit.annotation import annotate_functions
from rtit.annotation.formats.html import annotation_html
from rtit.coverage import Coverage, FolderTotals, SourceFile, folder_totals, source_files
from rtit.coverage.formats.html import branch_signs
from rtit.coverage.formats.lines import no_lines_message
from rtit.errors import UnsupportedError
from rtit.image.inlined_calls import FunctionIndex
from rtit.image.source_lines import read_source
from rtit.profile.builder import build_profile
from rtit.text_escaping import escape_control_characters
from rtit.views.call_tree import merge_functions
from rtit.views.flame_graph import flame_graph
from rtit.views.report import process_tree, report_json
from rtit.views.statistics import compute_statistics
from rtit.views.timeline import collect_calls, iterate_tracks, lane_name
from rtit.views.trace_tail import find_crashes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from rtit.image import FileFunction
    from rtit.profile.tables import Binary, Profile
    from rtit.trace import CallTree, Selection, Stream, Trace
    from rtit.views.statistics import RecordingStatistics
    from rtit.views.timeline import Timeline, Track

MAX_PROCESSES, MAX_STREAMS, MAX_LOSSES, MAX_CRASHES = 1000, 1000, 100, 10
MAX_FUNCTIONS, MAX_CALLERS = 20_000, 50_000
MAX_CALLS, MAX_CALL_DEPTH, MAX_TRACKS = 50_000, 100, 200
MAX_ANNOTATED, MAX_ANNOTATED_BYTES = 20, 32_000
MAX_SOURCE_LINES, MAX_SOURCE_CHARACTERS, MAX_FILES = 100_000, 4 << 20, 20_000
"""What the page shows at most of each kind."""
_CALLS_BEFORE_CRASH = 5
_MAX_NAME = 300
_U64 = np.uint64


@dataclass(frozen=True, slots=True)
class PageData:
    """The title of the page, its parts by name, and whether code or calls are missing in them."""

    title: str
    parts: dict[str, Any]
    has_gaps: bool


PASSES = 4
"""How often `collect_page_data` decodes a recording."""


def collect_page_data(
    trace: Trace,
    where: Selection | None = None,
    dsos: Sequence[str] = (),
    during_pass: Callable[[Sequence[Stream]], AbstractContextManager[object]] = nullcontext,
) -> PageData:
    """Decode the selected threads and return the data of their page.

    `dsos`: files of which the page has the coverage; by default the program. `during_pass` is
    called for each decoding of some streams, for example to show progress. Raises UsageError for a
    file without executed code.
    """
    streams = trace.select(where)
    with during_pass(streams):
        found = compute_statistics(trace, streams, MAX_LOSSES)
    crashes = find_crashes(trace, streams)
    processes = process_tree(trace, found.streams)
    report = report_json(trace, found, processes, crashes[:MAX_CRASHES], _CALLS_BEFORE_CRASH)
    del report["functions"]
    report["faults_count"] = len(crashes)
    report["streams_count"] = len(found.streams)
    report["branches"] = sum(each.branches for each in found.streams)
    report["pt_bytes"] = sum(each.pt_bytes for each in found.streams)
    report["decoded_bytes"] = sum(each.exact_bytes for each in found.streams)
    report["lost"] = [len(each.losses) for each in found.streams]
    report["streams"] = [
        {**each, "losses": [*each["losses"]], "repeats": [*each["repeats"]]}
        for each in report["streams"][:MAX_STREAMS]
    ]
    markup: dict[str, Any] = {}
    parts: dict[str, Any] = {"report": _limit_report(report)}
    title = " ".join(trace.command_line) or trace.path
    try:
        followed = trace.call_streams(where)
        with during_pass(followed):
            tree = trace.call_tree(where)
    except UnsupportedError as error:
        parts["no_calls"] = str(error)
        parts["functions"] = functions_without_calls(found)
    else:
        threads = [*trace.threads_of_calls(followed, where).values()]
        titles = {each.tid: each.title for each in threads} if len(threads) > 1 else {}
        parts["functions"] = functions_part(tree)
        root = merge_functions(tree, None, titles)
        picture = flame_graph(root, title, embedded=True)
        markup["flame_graph"] = b"".join(picture).decode("ascii")
        del tree, root
        with during_pass(followed):
            parts["timeline"] = timeline_part(trace, where)
        parts["threads"] = [
            {"tid": each.tid, "title": each.title} for each in threads[:MAX_STREAMS]
        ]
    profiled = trace.by_thread(where)
    with during_pass(profiled):
        profile = build_profile(trace, profiled)
    markup["annotations"] = annotations_part(profile)
    coverage = Coverage()
    coverage.add(profile, trace.path)
    coverage.files = coverage.select_files(dsos)
    parts["coverage"] = coverage_part(source_files(coverage), no_lines_message(coverage))
    repeats = any(each.unknown_loops for each in found.streams)
    has_gaps = bool(found.has_gaps or repeats or trace.image_problems or trace.incomplete)
    return PageData(title, {**_escape_texts(parts), **markup}, has_gaps)


def _limit_report(report: dict[str, Any]) -> dict[str, Any]:
    limits = {"processes": MAX_PROCESSES, "image_problems": MAX_LOSSES, "endings": MAX_PROCESSES}
    for name, limit in limits.items():
        report[f"{name}_count"] = len(report[name])
        report[name] = report[name][:limit]
    return report


def _escape_texts(value: Any) -> Any:
    """Return a value with all texts escaped for readers."""
    if isinstance(value, str):
        return escape_control_characters(value)
    if isinstance(value, dict):
        return {_escape_texts(name): _escape_texts(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_escape_texts, value)] if value and not isinstance(value[0], int) else value
    return value


# Functions, their callers and callees


def functions_without_calls(found: RecordingStatistics) -> dict[str, Any]:
    """Return the functions with the most instructions, as columns, without callees."""
    shown = found.functions.most_common(MAX_FUNCTIONS)
    return {
        "name": [_shorten(name) for (name, _), _ in shown],
        "module": [module for (_, module), _ in shown],
        "self": [count for _, count in shown],
        "instructions": found.instructions,
        "note": _cut_note(len(found.functions), "the most instructions"),
    }


def functions_part(tree: CallTree) -> dict[str, Any]:
    """Return the functions with the most instructions, callees included, as columns.

    `callers` and `callees` have rows (function, other function, calls, self, total), as the first
    levels of `rtit calls --function` with and without `--callers`. A caller of -1: none is known.
    """
    totals = tree.by_function()
    ordered = sorted(totals.items(), key=lambda row: (-row[1].total_instructions, row[0]))
    shown = ordered[:MAX_FUNCTIONS]
    numbers = {function: number for number, (function, _) in enumerate(shown)}
    callers, callees = (_number_functions(tree, numbers, each) for each in _call_edges(tree))
    notes = [_cut_note(len(ordered), "the most instructions, callees included")]
    hidden = max(len(each) - MAX_CALLERS for each in (callers, callees))
    if hidden > 0:
        notes.append(
            f"up to {hidden:,} callers or callees with the fewest instructions are not shown"
        )
    return {
        "name": [_shorten(name) for (name, _), _ in shown],
        "module": [module for (_, module), _ in shown],
        "self": [row.self_instructions for _, row in shown],
        "total": [row.total_instructions for _, row in shown],
        "calls": [row.calls for _, row in shown],
        "instructions": int(tree.self_instructions.sum()),
        "callers": callers[:MAX_CALLERS],
        "callees": callees[:MAX_CALLERS],
        "note": "; ".join(filter(None, notes)),
    }


def _cut_note(count: int, most: str) -> str:
    """Return a sentence about the functions that are not shown, of `count`; "" if all are."""
    hidden = count - MAX_FUNCTIONS
    if hidden <= 0:
        return ""
    return f"{hidden:,} functions are not shown: the {MAX_FUNCTIONS:,} with {most} are"


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"


_Edges = tuple["NDArray[np.uint64]", "NDArray[np.int64]", "NDArray[np.uint64]"]


def _call_edges(tree: CallTree) -> tuple[_Edges, _Edges]:
    """Return the callers and the callees of each function: function keys, a row of the other
    function (-1: none), and the counts.
    """
    keys, parent = tree.function_keys(), tree.parent.astype(np.int64)
    counts = np.stack([tree.calls, tree.self_instructions, tree.total_instructions], axis=1)
    outermost = _outermost_rows(tree, keys, parent)
    of_callers = counts.copy()
    of_callers[tree.recursive != 0, 2] = 0  # its total is that of the outermost call
    callers = keys, parent[outermost], of_callers
    called = (parent >= 0) & (tree.recursive[parent] == 0)
    rows = np.flatnonzero(called)
    return callers, (keys[parent[rows]], rows, counts[rows])


def _outermost_rows(
    tree: CallTree, keys: NDArray[np.uint64], parent: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return for each row the outermost call of its function on the same stack."""
    found = np.arange(len(keys))
    pending = np.flatnonzero(tree.recursive)
    at = pending.copy()
    while len(pending):
        at = parent[at]
        done = (keys[at] == keys[pending]) & (tree.recursive[at] == 0)
        found[pending[done]] = at[done]
        pending, at = pending[~done], at[~done]
    return found


def _number_functions(
    tree: CallTree, numbers: dict[tuple[str, str], int], edges: _Edges
) -> list[list[int]]:
    """Return rows (function, other function, calls, self, total) with the numbers of functions, the
    largest totals first.
    """
    keys, others, counts = edges
    number_of = {
        key: numbers.get((tree.functions[key >> 32], tree.modules[key & 0xFFFF_FFFF]), -2)
        for key in np.unique(tree.function_keys()).tolist()
    }
    known = np.fromiter(number_of, _U64, len(number_of))
    as_number = np.fromiter(number_of.values(), np.int64, len(number_of))

    def number(of: NDArray[np.uint64]) -> NDArray[np.int64]:
        return as_number[np.searchsorted(known, of)]

    first = number(keys)
    all_keys = tree.function_keys()
    second = np.where(others < 0, -1, number(all_keys[others])) if len(others) else others
    kept = (first != -2) & (second != -2)
    pairs = (first[kept] << 32) + (second[kept] + 1)
    distinct, which = np.unique(pairs, return_inverse=True)
    sums = np.zeros((len(distinct), 3), _U64)
    np.add.at(sums, which, counts[kept])
    largest = np.argsort(sums[:, 2], kind="stable")[::-1]
    return [
        [int(pair) >> 32, (int(pair) & 0xFFFF_FFFF) - 1, *row]
        for pair, row in zip(distinct[largest].tolist(), sums[largest].tolist(), strict=True)
    ]


# The timeline


def timeline_part(trace: Trace, where: Selection | None) -> dict[str, Any]:
    """Return the longest calls of each thread, once for an axis of instructions and, if the
    recording has times, once for an axis of time in nanoseconds from the first call.
    """
    timeline = collect_calls(
        trace, where, max_calls=MAX_CALLS, max_depth=MAX_CALL_DEPTH, with_time=True
    )
    columns = timeline.columns()
    has_time = len(columns["tid"]) > 0 and bool(columns["end_time"].max() > 0)
    axes = {}
    for axis in ("instructions", "time") if has_time else ("instructions",):
        timeline.with_time = axis == "time"
        axes[axis] = list(_tracks(timeline, trace))
    first = min((each["start"] for each in axes.get("time", ()) if each["calls"]), default=0)
    for each in axes.get("time", ()):
        each["start"] -= first if each["calls"] else each["start"]
    notes = [timeline.note] if timeline.note else []
    hidden = len(axes["instructions"]) - MAX_TRACKS
    if hidden > 0:
        notes.append(f"{hidden:,} tracks are not shown: those after the first {MAX_TRACKS:,}")
    axes = {name: tracks[:MAX_TRACKS] for name, tracks in axes.items()}
    return {"names": [*map(_shorten, timeline.names)], "axes": axes, "note": "; ".join(notes)}


def _tracks(timeline: Timeline, trace: Trace) -> Iterator[dict[str, Any]]:
    for track in iterate_tracks(timeline, trace):
        begins, ends, names, depths = _nested_calls(track)
        start = int(begins[0]) if len(begins) else 0
        title = timeline.thread_name(track.tid) + (
            f": {lane_name(track.lane)}" if track.lane else ""
        )
        yield {
            "tid": track.tid,
            "pid": timeline.threads[track.tid].pid,
            "title": title,
            "start": start,
            # small numbers compress well
            "begin": np.diff(begins, prepend=_U64(start)).tolist(),
            "length": (ends - begins).tolist(),
            "name": names.tolist(),
            "depth": depths.tolist(),
            "calls": len(begins),
        }


def _nested_calls(track: Track) -> tuple[NDArray[Any], ...]:
    """Return begin, end, name and depth of each call of a track, by begin."""
    # At one depth, begins and ends alternate.
    by_depth = np.argsort(track.depths, kind="stable")
    first, last = by_depth[::2], by_depth[1::2]
    order = np.argsort(first)
    first, last = first[order], last[order]
    return track.times[first], track.times[last], track.names[first], track.depths[first]


# Annotated code


def annotations_part(profile: Profile) -> dict[str, Any]:
    """Return the markup of the functions that executed the most instructions themselves."""
    hottest: list[tuple[int, Binary, int]] = []
    for binary in profile.binaries:
        owners = FunctionIndex(binary.symbols).find_functions(binary.offset)
        numbers, first, which = np.unique(owners, return_index=True, return_inverse=True)
        sums = np.zeros(len(numbers), _U64)
        np.add.at(sums, which, binary.count)
        rows = zip(numbers.tolist(), sums.tolist(), binary.offset[first].tolist(), strict=True)
        hottest += [(count, binary, offset) for owner, count, offset in rows if owner >= 0]
    hottest.sort(key=lambda each: -each[0])
    chosen: dict[int, list[FileFunction]] = {}
    left = MAX_ANNOTATED_BYTES
    for _, binary, offset in hottest[:MAX_ANNOTATED]:
        function = binary.symbols.find_function(offset)
        if function is not None and function.size <= left:
            left -= function.size
            chosen.setdefault(binary.number, []).append(function)
    annotated = [
        function
        for binary in profile.binaries
        for function in annotate_functions(profile, binary, chosen.get(binary.number, []))
    ]
    annotated.sort(key=lambda each: -each.executed_instructions)
    functions = [
        {
            "name": _shorten(each.name),
            "module": each.path,
            "self": each.executed_instructions,
            "html": "\n".join(annotation_html(each, prefix=f"f{number}")),
        }
        for number, each in enumerate(annotated)
    ]
    hidden = len(hottest) - len(functions)
    note = (
        f"{hidden:,} functions are not shown: the page has the {MAX_ANNOTATED} hottest ones, if "
        f"they fit into {MAX_ANNOTATED_BYTES:,} bytes of code; see rtit annotate"
    )
    return {"functions": functions, "note": note if hidden else ""}


# Coverage


def coverage_part(sources: Sequence[SourceFile], message: str) -> dict[str, Any]:
    """Return the source files, with text and counts of those in which the most lines ran.

    `message` says why there is no source file.
    """
    lines, characters = MAX_SOURCE_LINES, MAX_SOURCE_CHARACTERS
    files = [{"path": each.path, **_counts(each)} for each in sources]
    without_text = 0
    executed = [number for number, each in enumerate(sources) if each.lines_hit]
    for number in sorted(executed, key=lambda number: -sources[number].lines_hit):
        source = sources[number]
        text = [line.expandtabs() for line in read_source(source.path)]
        size = sum(map(len, text)) + len(text)
        if source.line_count > lines or size > characters:
            without_text += 1
            continue
        lines, characters = lines - source.line_count, characters - size
        rows = [
            [line, count, branch_signs(branches)]
            for line, count, branches in source.iterate_lines_with_branches()
        ]
        files[number] |= {"rows": rows, "text": text}
    notes = []
    if without_text:
        notes.append(
            f"the text of {without_text:,} files is not shown: the page has at most "
            f"{MAX_SOURCE_LINES:,} lines with code and {MAX_SOURCE_CHARACTERS >> 20} MB of text, "
            "files with the most executed lines first"
        )
    if len(files) > MAX_FILES:
        notes.append(f"{len(files) - MAX_FILES:,} files are not shown: those after {MAX_FILES:,}")
    return {
        "files": files[:MAX_FILES],
        "folders": [{"path": each.path, **_counts(each)} for each in folder_totals(sources)],
        "message": "" if files else message,
        "note": "; ".join(notes),
    }


def _counts(of: SourceFile | FolderTotals) -> dict[str, Any]:
    return {
        "lines": of.line_count,
        "lines_hit": of.lines_hit,
        "outcomes": of.outcome_count,
        "outcomes_hit": of.outcomes_hit,
    }
