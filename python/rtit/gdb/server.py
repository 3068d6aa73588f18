"""Waiting for gdb, and talking to it: the side of a conversation that has a socket."""

from __future__ import annotations

import socket
from collections.abc import Callable

from rtit.errors import UsageError
from rtit.gdb.protocol import Session
from rtit.gdb.target import Target

_PART = 1 << 16
_WAIT = 0.2


def listening(place: str) -> socket.socket:
    """A socket at `[HOST:]PORT`, without a host for this machine alone. Raises UsageError,
    OSError.
    """
    host, _, port = place.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"where to listen is [HOST:]PORT, not {place!r}")
    name = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    return socket.create_server((name, int(port)), family=_family(name))


def _family(name: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in name else socket.AF_INET


def accepted(listener: socket.socket, going_on: Callable[[], bool]) -> socket.socket | None:
    """The next connection; None once nothing goes on that could make one."""
    listener.settimeout(_WAIT)
    while going_on():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(None)
        return connection
    return None


def talk(connection: socket.socket, target: Target) -> None:
    """Answer until gdb goes away."""
    session = Session(target)
    with connection:
        while not session.closed:
            try:
                data = connection.recv(_PART)
                if not data:
                    return
                connection.sendall(session.feed(data))
            except ConnectionError:
                return
