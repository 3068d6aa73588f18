"""The call tree, or a timeline, in the JSON format of https://www.speedscope.app.

The format is `FileFormat` in `src/lib/file-format-spec.ts` of speedscope. Profiles are of its type
"evented": their size grows with the nodes of the tree, not with the depths of the nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rtit.text_escaping import escape_control_characters
from rtit.views.call_tree import callees_by_total
from rtit.views.timeline import iterate_tracks, lane_name

if TYPE_CHECKING:
    from rtit.trace import Trace
    from rtit.views.call_tree import FunctionNode
    from rtit.views.timeline import Timeline, Track

_BATCH_EVENTS = 1 << 16


def speedscope_json(profiles: Mapping[str, FunctionNode], name: str) -> dict[str, Any]:
    """Return the file as one JSON object, with a profile for each of some titles.

    A profile has the callees of its node, the largest first: not in the order of the run.
    """
    frames: dict[tuple[str, str], int] = {}
    found = [_tree_profile(title, node, frames) for title, node in profiles.items()]
    return {**_file_fields(name, frames), "profiles": found}


def speedscope_timeline(timeline: Timeline, trace: Trace, name: str) -> Iterator[bytes]:
    """Iterate over the parts of the file: a profile of each track, in the order of the run.

    Values are instructions or, on a time axis, nanoseconds of the recording's clock.
    """
    name += f" ({timeline.note})" if timeline.note else ""
    fields = _file_fields(name, ((each, "") for each in timeline.names))
    yield json.dumps(fields).encode()[:-1] + b',"profiles":['
    has_nanoseconds = timeline.with_time and trace.clock is not None
    separator = b""
    for track in iterate_tracks(timeline, trace):
        title = timeline.threads[track.tid].title
        if track.lane:
            title += f": {lane_name(track.lane)}"
        start = int(track.times[0]) if timeline.with_time and len(track.times) else 0
        end = int(track.times[-1]) if len(track.times) else start
        unit = "nanoseconds" if has_nanoseconds else "none"
        profile = {**_profile_fields(title, unit, start, end), "events": []}
        yield separator + json.dumps(profile).encode()[:-2]
        yield from _track_events(track)
        yield b"]}\n"
        separator = b","
    yield b"]}\n"


def _track_events(track: Track) -> Iterator[bytes]:
    separator = ""
    for start in range(0, len(track.times), _BATCH_EVENTS):
        rows = slice(start, start + _BATCH_EVENTS)
        columns = (column[rows].tolist() for column in (track.is_begin, track.names, track.times))
        events = (
            f'{{"type":"{"O" if is_begin else "C"}","frame":{frame},"at":{at}}}'
            for is_begin, frame, at in zip(*columns, strict=True)
        )
        yield f"{separator}{','.join(events)}".encode()
        separator = ","


def _file_fields(name: str, frames: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the fields of a file. `frames`: functions, and the source files of inlined ones."""
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": escape_control_characters(name),
        "exporter": "rtit",
        "activeProfileIndex": 0,
        "shared": {
            "frames": [
                {"name": name, "file": file} if file else {"name": name} for name, file in frames
            ]
        },
    }


def _profile_fields(title: str, unit: str, start: int, end: int) -> dict[str, Any]:
    return {
        "type": "evented",
        "name": escape_control_characters(title),
        "unit": unit,
        "startValue": start,
        "endValue": end,
    }


def _tree_profile(
    title: str, root: FunctionNode, frames: dict[tuple[str, str], int]
) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    at = 0
    # Functions to enter, and numbers of frames to leave.
    pending: list[FunctionNode | int] = [*callees_by_total(root)]
    while pending:
        node = pending.pop()
        if isinstance(node, int):
            events.append({"type": "C", "frame": node, "at": at})
            continue
        name = escape_control_characters(node.name) or "[unknown]"
        frame = frames.setdefault((name, escape_control_characters(node.file)), len(frames))
        events.append({"type": "O", "frame": frame, "at": at})
        at += node.own
        pending += [frame, *callees_by_total(node)]
    return {**_profile_fields(title, "none", 0, at), "events": events}
