"""HTTP servers for viewers: they listen on this machine only, and check the Host header.

Pages of other sites cannot read from such a server: their requests have no matching origin, and a
name of theirs that resolves to this machine is not a valid Host.
"""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADDRESS = "127.0.0.1"


class LocalRequestHandler(BaseHTTPRequestHandler):
    """Refuses requests for another host."""

    def parse_request(self) -> bool:
        """Return whether the request is to be answered."""
        if not super().parse_request():
            return False
        port = self.server.server_address[1]  # type: ignore[index]
        if self.headers.get("Host") in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            return True
        self.send_error(403, "This server answers requests to this machine only")
        return False

    def send_content(
        self, content: bytes, content_type: str, headers: dict[str, str] | None = None
    ) -> None:
        """Send a whole answer."""
        self.send_response(200)
        all_headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(content)),
            "X-Content-Type-Options": "nosniff",
            **(headers or {}),
        }
        for name, value in all_headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print no line for each request."""


def listen_locally(
    handler: Callable[..., LocalRequestHandler], port: int = 0
) -> ThreadingHTTPServer:
    """Return a server on a port of this machine; 0: any free port. Raises OSError."""
    return ThreadingHTTPServer((ADDRESS, port), handler)


def server_url(server: ThreadingHTTPServer) -> str:
    """Return the beginning of the addresses of a server, without a slash at the end."""
    return f"http://{ADDRESS}:{server.server_address[1]}"
