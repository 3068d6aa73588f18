"""A web server that answers range requests, or answers them wrong, and counts what it sends.

`StoreFile` and `RunCommand` are the types of fixtures of `tests/remote`.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

StoreFile = Callable[[str, bytes], str]
RunCommand = Callable[[Sequence[str | Path]], tuple[int, bytes, bytes]]
"""Runs a command; returns the exit code, what it prints, and its errors."""
_PART = 1 << 16
_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]+)")


class RangeServer(ThreadingHTTPServer):
    """Serves `files` by path.

    `answer` answers each GET request for a file; `sent_bytes` counts the bytes of files, and
    `requests` has path and query of each request. `stopped` is set when the server ends.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), RangeHandler)
        self.files: dict[str, bytes] = {}
        self.answer: Callable[[RangeHandler, bytes], None] = RangeHandler.send_range
        self.sent_bytes = 0
        self.requests: list[str] = []
        self.stopped = threading.Event()

    def url(self, path: str, *, user: str = "") -> str:
        """Return the URL of a file; `user` is NAME:PASSWORD."""
        return f"http://{user}{'@' * bool(user)}127.0.0.1:{self.server_port}{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that close the connection."""


class RangeHandler(BaseHTTPRequestHandler):
    """Answers a request."""

    protocol_version = "HTTP/1.1"
    server: RangeServer

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        content = self.server.files.get(urlsplit(self.path).path)
        if content is None:
            self.send_error(404)
        else:
            self.server.answer(self, content)

    def wanted_range(self, content: bytes) -> tuple[int, int]:
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        assert found is not None
        return int(found[1]), min(int(found[2]) + 1, len(content))

    def send_range(
        self,
        content: bytes,
        *,
        total: int | None = None,
        headers: dict[str, str] | None = None,
        break_off: bool = False,
        endless: bool = False,
    ) -> None:
        """Answer a range request.

        `total` is said to be the size of the file. `headers` are sent in addition, or instead.
        `break_off`: close the connection within the range; `endless`: never stop sending.
        """
        start, end = self.wanted_range(content)
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206)
        sent = {
            "Content-Range": f"bytes {start}-{end - 1}/{total or len(content)}",
            "Content-Length": str(1 << 60 if endless else end - start),
            **(headers or {}),
        }
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        if break_off:
            self.send_bytes(content[start : (start + end) // 2])
            self.close_connection = True
            return
        self.send_bytes(content[start:end])
        while endless:
            self.send_bytes(bytes(1 << 16))

    def send_whole_file(self, content: bytes) -> None:
        """Ignore the range, as a server that does not support ranges does."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.send_bytes(content)

    def send_bytes(self, data: bytes) -> None:
        for start in range(0, len(data), _PART):
            part = data[start : start + _PART]
            self.server.sent_bytes += len(part)  # counted before the client can read it
            self.wfile.write(part)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of http.server
        """Print nothing."""


@contextmanager
def range_server() -> Iterator[RangeServer]:
    """Run a server."""
    with RangeServer() as server:

        def serve() -> None:
            # The commands of rtit restore SIGPIPE, which would end this process.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
            server.serve_forever(poll_interval=0.02)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server
        finally:
            server.stopped.set()
            server.shutdown()
            thread.join()
