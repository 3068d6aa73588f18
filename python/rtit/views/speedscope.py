"""The call tree in the JSON format of https://www.speedscope.app.

The format is `FileFormat` in `src/lib/file-format-spec.ts` of speedscope. Profiles are of its type
"evented": their size grows with the nodes of the tree, not with the depths of the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rtit.text_escaping import escape_control_characters
from rtit.views.call_tree import callees_by_total

if TYPE_CHECKING:
    from rtit.views.call_tree import FunctionNode


def speedscope_json(profiles: Mapping[str, FunctionNode], name: str) -> dict[str, Any]:
    """Return the file as one JSON object, with a profile for each of some titles.

    A profile has the callees of its node, the largest first: not in the order of the run.
    """
    frames: dict[str, int] = {}
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": escape_control_characters(name),
        "exporter": "rtit",
        "activeProfileIndex": 0,
        "profiles": [_profile(title, node, frames) for title, node in profiles.items()],
        "shared": {"frames": [{"name": each} for each in frames]},
    }


def _profile(title: str, root: FunctionNode, frames: dict[str, int]) -> dict[str, Any]:
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
        frame = frames.setdefault(name, len(frames))
        events.append({"type": "O", "frame": frame, "at": at})
        at += node.own
        pending += [frame, *callees_by_total(node)]
    return {
        "type": "evented",
        "name": escape_control_characters(title),
        "unit": "none",
        "startValue": 0,
        "endValue": at,
        "events": events,
    }
