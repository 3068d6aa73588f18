"""Debuginfod: a client for servers that give files by their build ids, with a cache.

The servers are those of DEBUGINFOD_URLS. The cache is the one of elfutils' client.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from rtit.errors import UsageError
from rtit.image.debug_files import open_if_build_id

URLS, CACHE, TIMEOUT = "DEBUGINFOD_URLS", "DEBUGINFOD_CACHE_PATH", "DEBUGINFOD_TIMEOUT"
_SCHEMES = ("http", "https")
_SIGNATURES = "ima:"
"""Prefix of words that say whether files of the following servers must be signed."""
_SECONDS = 30.0
_MAX_SIZE = 1 << 31
_DOWNLOAD_CHUNK = 1 << 18
_MIN_BUILD_ID = 4
_NUMBER = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,3})?")


class Debuginfod:
    """Downloads files by build id from the servers `urls` (http or https) to the folder `cache`.

    The servers are tried in order. A server that needs more than `timeout` seconds for an answer or
    a transfer, or that breaks a transfer off, is not tried again. A file of more than `max_size`
    bytes, or with another build id, counts as missing. Raises UsageError for other URLs.
    """

    def __init__(
        self,
        urls: Sequence[str],
        cache: str | os.PathLike[str],
        *,
        timeout: float = _SECONDS,
        max_size: int = _MAX_SIZE,
    ) -> None:
        for url in urls:
            try:
                parts = urllib.parse.urlsplit(url)
                good = parts.scheme in _SCHEMES and bool(parts.netloc)
            except ValueError:
                good = False
            if not good:
                raise UsageError(f"{URLS}: {url!r} is not an http or https URL")
        self._urls = [url.rstrip("/") for url in urls]
        self._cache = Path(cache)
        self._timeout = timeout
        self._max_size = max_size
        self._missing: set[tuple[str, str]] = set()
        self._open = urllib.request.build_opener(_HttpRedirectHandler).open

    @classmethod
    def from_environment(cls) -> Debuginfod:
        """Return a client with DEBUGINFOD_URLS, DEBUGINFOD_CACHE_PATH and DEBUGINFOD_TIMEOUT.

        Words such as ima:enforcing are ignored, as by a client of elfutils that is built without
        verification of signatures: the build id identifies a file. Raises UsageError without a URL.
        """
        words = os.environ.get(URLS, "").split()
        urls = [word for word in words if not word.startswith(_SIGNATURES)]
        if not urls:
            raise UsageError(f"{URLS} names no server, such as https://debuginfod.debian.net")
        timeout = os.environ.get(TIMEOUT, "")
        return cls(
            urls,
            _default_cache_folder(),
            timeout=float(timeout) if _NUMBER.fullmatch(timeout) else _SECONDS,
        )

    def fetch_executable(self, build_id: bytes) -> str | None:
        """Return the path of the file with this build id; None if no server has it."""
        return self._find_or_download(build_id, "executable")

    def fetch_debug_file(self, build_id: bytes) -> str | None:
        """Return the path of the debug file; None if no server has it."""
        return self._find_or_download(build_id, "debuginfo")

    def _find_or_download(self, build_id: bytes, kind: str) -> str | None:
        name = build_id.hex()
        path = self._cache / name / kind
        with contextlib.suppress(OSError):
            # elfutils keeps an empty file for a build id that no server has.
            if path.is_file() and path.stat().st_size:
                return str(path)
        if len(build_id) < _MIN_BUILD_ID or (name, kind) in self._missing:
            return None
        for url in list(self._urls):
            try:
                if self._download_file(f"{url}/buildid/{name}/{kind}", path, build_id):
                    return str(path)
            except urllib.error.HTTPError:
                continue  # the server does not have the file
            except (OSError, http.client.HTTPException, ValueError):
                self._urls.remove(url)
        self._missing.add((name, kind))
        return None

    def _download_file(self, url: str, path: Path, build_id: bytes) -> bool:
        deadline = time.monotonic() + self._timeout
        with self._open(url, timeout=self._timeout) as answer:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent) as file:
                # read1 returns what has arrived: a slow server does not delay the deadline's check.
                size = self._copy_response(answer.read1, file, deadline)
                if not size:
                    return False
                # A transfer that breaks off ends like a complete one.
                if answer.headers.get("Content-Length", str(size)).strip() != str(size):
                    raise ValueError("the answer breaks off")
                file.flush()
                if open_if_build_id(file.name, build_id) is None:
                    return False
                # The final name never has a part of the file; it can be an empty file before.
                complete = f"{file.name}.complete"
                os.link(file.name, complete)
                Path(complete).replace(path)
        return True

    def _copy_response(self, read: Callable[[int], bytes], file: IO[bytes], deadline: float) -> int:
        """Return the bytes copied; 0 if there are too many. Raises TimeoutError at the deadline."""
        size = 0
        while block := read(_DOWNLOAD_CHUNK):
            size += len(block)
            if size > self._max_size:
                return 0
            if time.monotonic() > deadline:
                raise TimeoutError
            file.write(block)
        return size


class _HttpRedirectHandler(urllib.request.HTTPRedirectHandler):
    """Follows redirections to http and https only."""

    def redirect_request(self, *arguments: Any, **keywords: Any) -> urllib.request.Request | None:
        request = super().redirect_request(*arguments, **keywords)
        if request is not None and request.type not in _SCHEMES:
            raise ValueError(f"a redirection to {request.type}")
        return request


def _default_cache_folder() -> Path:
    given = os.environ.get(CACHE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "debuginfod_client"
