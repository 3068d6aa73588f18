"""rtit: Intel Processor Trace, complete, in software.

`rtit.record([...])` records a program, `rtit.Trace(path)` opens a recording, `rtit.open_many(...)`
opens many, `rtit.map_many(...)` opens many in several processes, `rtit.decode(data, image)` decodes
raw PT with an `rtit.Image` of the code, `rtit.Decoder` decodes many short traces,
`rtit.stat([...])` counts without a trace, and `rtit.scenario` runs events on a modelled processor.
These names load their modules on first use; errors are there at once.
"""

from __future__ import annotations

from rtit.errors import (
    ClosedError,
    ConcurrentUseError,
    IllegalEvent,
    ImageError,
    InputError,
    MissingFileError,
    MissingImageError,
    MissingRecordingError,
    NotPerfDataError,
    PacketError,
    PerfDataError,
    RecordError,
    RtitError,
    ScenarioError,
    TruthError,
    UnsupportedError,
    UsageError,
    WorkerDiedError,
)

TYPE_CHECKING = False  # the typing module alone would take longer to load than all of this
if TYPE_CHECKING:
    from rtit import scenario
    from rtit.annotation import annotate
    from rtit.capture.backends import record
    from rtit.capture.session import Recording
    from rtit.counting.counted_run import stat
    from rtit.diff.diff_traces import assert_same_path
    from rtit.image import Image
    from rtit.linter import lint
    from rtit.trace import Decoder, Selection, Start, Trace, decode, map_many, open_many

__version__: str = "0.1.0"

__all__ = [
    "ClosedError",
    "ConcurrentUseError",
    "Decoder",
    "IllegalEvent",
    "Image",
    "ImageError",
    "InputError",
    "MissingFileError",
    "MissingImageError",
    "MissingRecordingError",
    "NotPerfDataError",
    "PacketError",
    "PerfDataError",
    "RecordError",
    "Recording",
    "RtitError",
    "ScenarioError",
    "Selection",
    "Start",
    "Trace",
    "TruthError",
    "UnsupportedError",
    "UsageError",
    "WorkerDiedError",
    "__version__",
    "annotate",
    "assert_same_path",
    "decode",
    "lint",
    "map_many",
    "open_many",
    "record",
    "scenario",
    "stat",
]

_HOMES = {
    "Decoder": "rtit.trace",
    "Image": "rtit.image",
    "Recording": "rtit.capture.session",
    "Selection": "rtit.trace",
    "Start": "rtit.trace",
    "Trace": "rtit.trace",
    "annotate": "rtit.annotation",
    "assert_same_path": "rtit.diff.diff_traces",
    "decode": "rtit.trace",
    "lint": "rtit.linter",
    "map_many": "rtit.trace",
    "open_many": "rtit.trace",
    "record": "rtit.capture.backends",
    "stat": "rtit.counting.counted_run",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "scenario":
        return import_module("rtit.scenario")
    raise AttributeError(f"module 'rtit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
