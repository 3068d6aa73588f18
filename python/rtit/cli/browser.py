"""Serves a page to a browser of this machine until Ctrl-C."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rtit.cli import output

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer


def serve_until_interrupted(server: ThreadingHTTPServer, what: str, url: str) -> None:
    """Print the address of what is served, open it in a browser if there is a display, and serve.

    Ends with KeyboardInterrupt.
    """
    with server:
        output.print_line(f"Serving the {what} at {url} until Ctrl-C")
        output.flush_output()
        if any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
            import webbrowser

            webbrowser.open(url)
        server.serve_forever()
