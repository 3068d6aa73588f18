"""rtit: Intel Processor Trace, complete, in software.

`rtit.record([...])` records a program, `rtit.Trace(path)` opens a recording, `rtit.decode(data,
image)` takes bare PT and an `rtit.Image` of the code, `rtit.Decoder` one short trace after the
other, `rtit.scenario` runs events on a modelled processor. They load what they need on first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the typing module alone would take longer to load than all of this
if TYPE_CHECKING:
    from rtit import scenario
    from rtit.capture import Recording, record
    from rtit.counting import stat
    from rtit.diff import assert_same_path
    from rtit.image import Image
    from rtit.linter import lint
    from rtit.trace import Decoder, Start, Trace, decode

__version__: str = "0.1.0"

__all__ = [
    "Decoder",
    "Image",
    "Recording",
    "Start",
    "Trace",
    "__version__",
    "assert_same_path",
    "decode",
    "lint",
    "record",
    "scenario",
    "stat",
]

_HOMES = {
    "Decoder": "rtit.trace",
    "Image": "rtit.image",
    "Recording": "rtit.capture",
    "Start": "rtit.trace",
    "Trace": "rtit.trace",
    "assert_same_path": "rtit.diff",
    "decode": "rtit.trace",
    "lint": "rtit.linter",
    "record": "rtit.capture",
    "stat": "rtit.counting",
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
