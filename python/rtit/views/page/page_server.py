"""Serves the page of a recording to a browser of this machine, until it is stopped.

The address has a secret token: other users of the machine, and pages of other sites, do not know
it. `LocalRequestHandler` checks the Host header.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_urlsafe
from typing import Any
from urllib.parse import parse_qs

from rtit.errors import RtitError, UsageError
from rtit.text_escaping import escape_control_characters, format_json
from rtit.views.local_server import LocalRequestHandler, listen_locally, server_url
from rtit.views.perfetto_server import serve_timeline

_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "frame-ancestors 'none'",
}


class ServedPage:
    """The page, and what is decoded when it is needed: the timeline for Perfetto
    (`make_timeline`), and the instructions of a thread (`list_instructions`: thread id, first one,
    number of instructions).
    """

    def __init__(
        self,
        page: bytes,
        make_timeline: Callable[[], bytes],
        list_instructions: Callable[[int, int, int], object],
        *,
        has_perfetto: bool,
    ) -> None:
        self.page = page
        self._make_timeline = make_timeline
        self._list_instructions = list_instructions
        self._has_perfetto = has_perfetto
        self._lock = threading.Lock()
        self._perfetto_url: str | None = None

    def perfetto_url_or_timeline(self) -> str | bytes:
        """Return the address at which Perfetto shows the timeline, or the timeline.

        Starts the server of Perfetto. Raises what decoding raises, and UnsupportedError if the port
        of Perfetto is in use.
        """
        with self._lock:
            if not self._has_perfetto:
                return self._make_timeline()
            if self._perfetto_url is None:
                server, self._perfetto_url = serve_timeline(self._make_timeline())
                threading.Thread(target=server.serve_forever, daemon=True).start()
            return self._perfetto_url

    def instructions(self, query: str) -> object:
        """Return the instructions that a query names: tid, first and count.

        Raises what decoding raises, UsageError for other queries.
        """
        values = parse_qs(query)
        try:
            tid, first, count = (int(values[name][0]) for name in ("tid", "first", "count"))
        except (KeyError, ValueError):
            raise UsageError("expected the numbers tid, first and count") from None
        with self._lock:
            return self._list_instructions(tid, max(first, 0), max(count, 1))


class _PageHandler(LocalRequestHandler, BaseHTTPRequestHandler):
    """Serves the page below the token."""

    def __init__(self, *args: Any, content: ServedPage, token: str, **keywords: Any) -> None:
        self._content = content
        self._token = token
        super().__init__(*args, **keywords)

    def do_GET(self) -> None:
        _, _, rest = self.path.partition("/")
        token, _, name = rest.partition("/")
        name, _, query = name.partition("?")
        if not compare_digest(token.encode(), self._token.encode()):
            self.send_error(403, "The address does not have the token that rtit printed")
        elif name == "":
            self.send_content(self._content.page, "text/html; charset=utf-8", _HEADERS)
        elif name == "perfetto":
            self._open_perfetto()
        elif name == "instructions":
            self._send_instructions(query)
        else:
            self.send_error(404)

    def _send_instructions(self, query: str) -> None:
        try:
            found = self._content.instructions(query)
        except RtitError as error:
            found = {"error": escape_control_characters(str(error))}
        self.send_content(format_json(found).encode(), "application/json", _HEADERS)

    def _open_perfetto(self) -> None:
        try:
            found = self._content.perfetto_url_or_timeline()
        except RtitError as error:
            self.send_content(f"{error}\n".encode(), "text/plain; charset=utf-8", _HEADERS)
            return
        if isinstance(found, str):
            self.send_response(303)
            self.send_header("Location", found)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        name = {"Content-Disposition": 'attachment; filename="calls.pftrace"'}
        self.send_content(found, "application/octet-stream", {**_HEADERS, **name})


def serve_page(content: ServedPage) -> tuple[ThreadingHTTPServer, str]:
    """Return a server on a free port of this machine, and the address of the page."""
    token = token_urlsafe(24)
    server = listen_locally(partial(_PageHandler, content=content, token=token))
    return server, f"{server_url(server)}/{token}/"
