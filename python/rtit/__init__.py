"""rtit: Intel Processor Trace, complete, in software.

`rtit.record([...])` records a program, `rtit.Trace(path)` opens a recording, `rtit.scenario` runs
events on a modelled processor. They load what they need on first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the typing module alone would take longer to load than all of this
if TYPE_CHECKING:
    from rtit import scenario
    from rtit.capture import Recording, record
    from rtit.linter import lint
    from rtit.trace import Trace

__version__: str = "0.1.0"

__all__ = ["Recording", "Trace", "__version__", "lint", "record", "scenario"]

_HOMES = {
    "Recording": "rtit.capture",
    "record": "rtit.capture",
    "lint": "rtit.linter",
    "Trace": "rtit.trace",
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
