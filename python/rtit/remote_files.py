"""Recordings that are named by a URL: https://, s3://, memory:// and whatever else fsspec reads.

A remote file is read by range. fsspec finds and reads the files; only the requests for ranges by
http are made here, with fsspec's session, because each answer is checked: that it is the range,
that the file is still the same, and that no more bytes are read than were asked for.

A URL can contain a password or a token. `display_name` returns the URL without them, for errors,
results, and the name of a recording.
"""

from __future__ import annotations

import io
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rtit.errors import InputError, MissingRecordingError, PerfDataError, UnsupportedError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*::)*[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_URL_IN_TEXT = re.compile(rf"{_URL.pattern}[^\s'\"<>]*", re.IGNORECASE)
_LINK_END = re.compile(r"::(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
"""Between the URLs of a chain, such as zip://a.data::https://host/a.zip."""
_LOCAL = re.compile(r"(?:file|local)://", re.IGNORECASE)
_HTTP = re.compile(r"https?://", re.IGNORECASE)
_PATTERN = re.compile(r"[*?[]")
_HOST_AND_PORT = re.compile(r"[^:]*(?::[0-9]*)?")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_SUFFIXES = (".data", ".rtit.zip")
_INSTALL = "pip install 'rtit[remote]'"
_FIRST_RANGE = 1 << 16
_CONNECT_SECONDS, _SILENT_SECONDS, _REQUEST_SECONDS = 30, 60, 600
"""Bounds of a request by http: until it is connected, between two pieces, and in all."""
Result = TypeVar("Result")


def is_url(name: object) -> bool:
    """Return whether a name is a URL of a remote file; file:// is local."""
    return isinstance(name, str) and bool(_URL.match(name)) and not _LOCAL.match(name)


def local_path(name: str) -> str:
    """Return the path in a URL of a local file; other names unchanged."""
    return name[found.end() :] if (found := _LOCAL.match(name)) else name


def display_name(name: str) -> str:
    """Return a URL without user, password, query and fragment; other names unchanged."""
    if not _URL.match(name):
        return name
    return "::".join(map(_without_secrets, _LINK_END.split(name)))


def _without_secrets(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    if "@" in authority:
        rest = rest[authority.rindex("@") + 1 :]
    elif "@" in rest and not _HOST_AND_PORT.fullmatch(authority):
        rest = rest.rpartition("@")[2]  # a password with a slash, which should be written as %2F
    rest = rest.partition("?")[0]
    if _HTTP.match(url):
        rest = rest.partition("#")[0]
    return f"{scheme}://{rest}"


def without_credentials(text: str) -> str:
    """Return a text with each URL in it as `display_name` shows it."""
    return _URL_IN_TEXT.sub(lambda found: display_name(found[0]), text)


class RemoteFile(io.RawIOBase):
    """A file that is read by range; also a binary file for reading.

    `name` is its display name, `size` in bytes, `modified` in seconds since 1970: now if unknown.

    Raises MissingRecordingError, PerfDataError if the file cannot be read by range, and
    UnsupportedError if a package is missing.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = display_name(url)
        self._position = 0
        self._file = _call(url, _open_file, url)
        self.size, self.modified = self._file.size, self._file.modified

    def read_range(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, which are in the file. Raises PerfDataError."""
        data = _call(self.url, self._file.read_range, start, end)
        if len(data) != end - start:
            message = f"{len(data):,} bytes came where the file had {end - start:,}"
            raise PerfDataError(message, source=self.name, offset=start)
        return data

    @property
    def file_name(self) -> str:
        """The name of the file in its folder."""
        return _split_name(self.url)[1]

    def url_beside(self, name: str) -> str:
        """Return the URL of a file in the same folder."""
        before, _, after = _split_name(self.url)
        return f"{before}{name}{after}"

    def open_beside(self, name: str) -> RemoteFile | None:
        """Return a file in the same folder; None if it cannot be read."""
        try:
            return RemoteFile(self.url_beside(name))
        except PerfDataError:
            return None

    def names_beside(self) -> list[str]:
        """Return the names of the files in the same folder; none if it cannot be listed."""
        if not _has_list_of_files(self.url):
            return []
        try:
            return _call(self.url, _list_folder, self.url)
        except PerfDataError:
            return []

    # As a binary file

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer from the position on; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        end = min(self._position + len(view), self.size)
        if end <= self._position:
            return 0
        data = self.read_range(self._position, end)
        view[: len(data)] = data
        self._position = end
        return len(data)


def open_if_url(source: Any) -> Any:
    """Return the remote file for a URL, the path for a URL of a local file; others unchanged."""
    if is_url(source):
        return RemoteFile(source)
    return local_path(source) if isinstance(source, str) else source


def find_remote_recordings(url: str) -> list[str]:
    """Return the URLs of the recordings that a URL stands for: a file, a folder, or a pattern.

    A folder stands for the files below it whose names end in .data or .rtit.zip, a pattern for all
    files that match it. By http, a URL is one file. Raises PerfDataError if there are none, or if a
    URL by http is a pattern.
    """
    if _HTTP.match(url) and "*" in url.partition("?")[0]:
        raise _problem(url, "a web server has no list of its files: name each recording")
    return _call(url, _find_files, url) if _has_list_of_files(url) else [url]


def _has_list_of_files(url: str) -> bool:
    """Whether folders can be listed: fsspec would take the links in a page of a web server."""
    first = _LINK_END.split(url)[0]
    return "://" in first and not _HTTP.match(first)


def _find_files(url: str) -> list[str]:
    system, path = _file_system(url)
    if system.isfile(path):
        return [url]
    if system.isdir(path):
        found = [each for each in system.find(path) if each.endswith(_SUFFIXES)]
        if not found:
            raise _problem(url, "no recording is in this folder")
    else:
        matching = system.glob(path) if _PATTERN.search(path) else []
        found = [each for each in matching if system.isfile(each)]
        if not found:
            raise FileNotFoundError(url)
    first, *rest = _LINK_END.split(url.rstrip("/"))
    # The file system removed what is not the path: the scheme, and often the host.
    before = first.removesuffix(path.rstrip("/"))
    if before == first:
        before = f"{first.partition('://')[0]}://"
    return ["::".join((before + each, *rest)) for each in sorted(found)]


def _split_name(url: str) -> tuple[str, str, str]:
    """Return what is before the name of the file, the name, and what follows it."""
    first, link_end, rest = url, "", ""
    if (found := _LINK_END.search(url)) is not None:
        first, link_end, rest = url[: found.start()], found[0], url[found.end() :]
    path, question, query = first.partition("?")
    folder, slash, name = path.rpartition("/")
    return folder + slash, name, question + query + link_end + rest


def _list_folder(url: str) -> list[str]:
    system, path = _file_system(url)
    folder = path.rpartition("/")[0]
    return sorted(each["name"].rpartition("/")[2] for each in system.ls(folder, detail=True))


class _FileVersion(NamedTuple):
    """What a server says about a file in each answer, and what shows that the file has changed."""

    size: int
    tag: str


class _HttpFile:
    """A file of a web server that supports range requests."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._version: _FileVersion | None = None
        self._first = b""
        self.modified = time.time()
        self._first = self.read_range(0, _FIRST_RANGE)
        self.size = self._version.size if self._version is not None else 0

    def read_range(self, start: int, end: int) -> bytes:
        if end <= len(self._first):
            return self._first[start:end]
        from fsspec.asyn import sync

        system, _ = _file_system(self._url)
        found: bytes = sync(system.loop, self._request_range, system, start, end)
        return found

    async def _request_range(self, system: Any, start: int, end: int) -> bytes:
        from aiohttp import ClientPayloadError

        options = dict(system.kwargs)
        headers = {
            **options.pop("headers", {}),
            "Range": f"bytes={start}-{end - 1}",
            "Accept-Encoding": "identity",
        }
        session = await system.set_session()
        url = system.encode_url(self._url)
        async with session.get(url, headers=headers, **options) as answer:
            urls = [each.url for each in (*answer.history, answer)]
            if url.scheme == "https" and any(each.scheme != "https" for each in urls):
                raise _problem(self._url, "the server redirects from https to http")
            if answer.status == 416 and start == 0:
                return b""  # the file is empty
            answer.raise_for_status()
            given = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status != 206 or given is None or int(given[1]) != start:
                message = (
                    "the server does not support range requests: copy the file, and name the copy"
                )
                raise _problem(self._url, message)
            size, date = int(given[3]), answer.headers.get("Last-Modified", "")
            self._check_version(_FileVersion(size, answer.headers.get("ETag", date)))
            self.modified = _seconds_of_date(date, self.modified)
            try:
                data: bytes = await answer.content.readexactly(min(end, size) - start)
            except (EOFError, ClientPayloadError):
                raise _problem(self._url, "the connection ended too early") from None
            return data

    def _check_version(self, version: _FileVersion) -> None:
        if self._version is None:
            self._version = version
        elif version != self._version:
            raise _problem(self._url, "the file changed while it was read")


class _StoredFile:
    """A file of another file system of fsspec."""

    def __init__(self, url: str) -> None:
        self._url = url
        system, path = _file_system(url)
        info = system.info(path)
        if info["type"] == "directory":
            message = "a recording in a folder is read only from a local disk: use `rtit pack`"
            raise _problem(url, message)
        if not isinstance(info.get("size"), int):
            raise _problem(url, "the file system does not give the size of the file")
        self.size: int = info["size"]
        try:
            self.modified: float = system.modified(path).timestamp()
        except (NotImplementedError, AttributeError, KeyError, TypeError):
            self.modified = time.time()

    def read_range(self, start: int, end: int) -> bytes:
        system, path = _file_system(self._url)
        data: bytes = system.cat_file(path, start=start, end=end)
        return data


def _open_file(url: str) -> _HttpFile | _StoredFile:
    return _HttpFile(url) if _HTTP.match(url) else _StoredFile(url)


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it. fsspec keeps one for each process."""
    try:
        from fsspec.core import url_to_fs

        options: dict[str, Any] = {}
        if _HTTP.match(url):
            import aiohttp

            timeout = aiohttp.ClientTimeout(
                total=_REQUEST_SECONDS, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS
            )
            options["client_kwargs"] = {"timeout": timeout, "trust_env": True}
            options["encoded"] = "%" in url
    except ImportError:
        message = f"{display_name(url)}: reading a URL needs more packages: {_INSTALL}"
        raise UnsupportedError(message) from None
    system, path = url_to_fs(url, **options)
    return system, path


def _seconds_of_date(text: str, default: float) -> float:
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return default


def _problem(url: str, message: str) -> PerfDataError:
    return PerfDataError(message, source=display_name(url))


def _call(url: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function of a file system. What it raises becomes an error without credentials."""
    with _blocked_pipe_signal():
        try:
            return function(*arguments)
        except (InputError, UnsupportedError):
            raise
        except Exception as error:  # each file system has errors of its own
            found = _input_error(url, error)
    raise found  # out here, so that the error with the URL is not its context


@contextmanager
def _blocked_pipe_signal() -> Iterator[None]:
    """Make a closed connection an error: SIGPIPE ends the commands of rtit.

    fsspec's thread for connections, which is started here, also has the signal blocked.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    finally:
        if signal.SIGPIPE not in mask:
            signal.sigtimedwait({signal.SIGPIPE}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _input_error(url: str, error: Exception) -> InputError:
    name = display_name(url)
    status = getattr(error, "status", None)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return MissingRecordingError(name)
    if isinstance(status, int):
        return PerfDataError(f"cannot be read: the server answers {status}", source=name)
    if isinstance(error, TimeoutError):
        return PerfDataError("cannot be read: the server does not answer in time", source=name)
    text = without_credentials(str(error).partition("\n")[0])
    if not text or any(secret in text for secret in _secrets(url)):
        text = type(error).__name__
    return PerfDataError(f"cannot be read: {text}", source=name)


def _secrets(url: str) -> Iterator[str]:
    """Yield the parts of a URL that `display_name` leaves out."""
    shown = set(re.split(r"[/:@?&=#]+", display_name(url)))
    return (part for part in re.split(r"[/:@?&=#]+", url) if len(part) > 2 and part not in shown)
