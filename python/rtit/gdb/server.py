"""Serves gdb over a socket."""

from __future__ import annotations

import socket
from collections.abc import Callable

from rtit.errors import UsageError
from rtit.gdb.protocol import GdbSession
from rtit.gdb.target import GdbTarget

_RECEIVE_BYTES = 1 << 16
_POLL_SECONDS = 0.2


def open_listener(address: str) -> socket.socket:
    """Return a socket that listens at `[HOST:]PORT`; without HOST, on the loopback interface.

    Raises UsageError, OSError.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"the address to listen at is [HOST:]PORT, not {address!r}")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, int(port)), family=family)


def accept_connection(
    listener: socket.socket, is_running: Callable[[], bool]
) -> socket.socket | None:
    """Return the next connection; None once `is_running` returns False."""
    listener.settimeout(_POLL_SECONDS)
    while is_running():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(None)
        return connection
    return None


def serve_connection(connection: socket.socket, target: GdbTarget) -> None:
    """Answer packets until gdb disconnects."""
    session = GdbSession(target)
    with connection:
        while not session.closed:
            try:
                data = connection.recv(_RECEIVE_BYTES)
                if not data:
                    return
                connection.sendall(session.feed_bytes(data))
            except ConnectionError:
                return
