"""What `rtit record` says of a recording at its end: one line, or one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtit.capture.backends import Choice
    from rtit.capture.recording import Recording


def line(recording: Recording, choice: Choice) -> str:
    """The summary. How the program ended is in it unless that is exit code 0."""
    threads = f"{recording.threads} thread{'s' if recording.threads != 1 else ''}"
    counts = f"{recording.instructions:,} instructions, {recording.branches:,} branches"
    parts = [
        _traced(recording)
        if not recording.counted
        else f"{counts} of {threads} executed, {_traced(recording)}"
        if recording.partial
        else f"{counts} of {threads} as {_traced(recording)}"
    ]
    if recording.ending is not None and recording.ending.status:
        parts.append(f"ended by {recording.ending}" if recording.ending.signal
                     else f"ended with {recording.ending}")  # fmt: skip
    parts.append(f"{choice.backend}: {choice.why}")
    return f"[ rtit record: {'; '.join(parts)} ]"


def _traced(recording: Recording) -> str:
    size = f"{recording.pt_bytes:,} bytes of PT"
    if not (recording.counted and recording.partial):
        return f"{size} in {recording.path}"
    instructions, branches = recording.traced_instructions, recording.traced_branches
    if instructions is None:
        return f"of which {size} are in {recording.path}"
    traced = f"of them {instructions:,} instructions, {branches:,} branches traced"
    return f"{traced} as {size} in {recording.path}"


def as_json(recording: Recording, choice: Choice, command: list[str]) -> dict[str, Any]:
    """One JSON object; what it has is documented in `rtit record --help`."""
    ending = recording.ending
    fault = ending.fault if ending is not None else None
    return {
        "file": str(recording.path),
        "command": command,
        "backend": choice.backend,
        "why": choice.why,
        "exit_code": recording.exit_code,
        "ended": None if ending is None else str(ending),
        "signal": None if ending is None else ending.signal,
        "fault": None
        if fault is None
        else {"ip": fault.ip, "address": fault.address, "si_code": fault.code},
        "executed_instructions": recording.instructions if recording.counted else None,
        "executed_branches": recording.branches if recording.counted else None,
        "traced_instructions": recording.traced_instructions,
        "traced_branches": recording.traced_branches,
        "partial": recording.partial,
        "threads": recording.threads if recording.counted else None,
        "pt_bytes": recording.pt_bytes,
        "stopped": recording.stopped,
        "warnings": list(recording.warnings),
    }
