"""Back ends that make a real program drive the trace unit, and the recorder behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtit.capture.backends import choose, record, start
    from rtit.capture.session import Recording, Session, replay

__all__ = ["Recording", "Session", "choose", "record", "replay", "start"]

_BACKENDS = {"choose", "record", "start"}


def __getattr__(name: str) -> Any:
    # loaded on use: reading filters must not load the trace unit
    if name in _BACKENDS:
        from rtit.capture import backends

        return getattr(backends, name)
    if name in __all__:
        from rtit.capture import session

        return getattr(session, name)
    raise AttributeError(f"module 'rtit.capture' has no attribute {name!r}")
