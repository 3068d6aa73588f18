"""Files by build id, from perf's cache and from debuginfod servers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.errors import UsageError
from rtit.image.debuginfod import Debuginfod
from rtit.image.mapped_files import Files, UnusableFile
from rtit.perfdata import PerfData
from support.elf import elf_with_build_id
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]
Answer = Callable[[BaseHTTPRequestHandler], None]
ID = bytes.fromhex("0123456789abcdef0123456789abcdef01234567")
FILE = elf_with_build_id(ID)


class Server:
    """Answers what `answers` has for a path, 404 for the rest; `asked` is every path."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | Answer] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                answer = outer.answers.get(self.path)
                if callable(answer):
                    answer(self)
                    return
                self.send_response(404 if answer is None else 200)
                self.end_headers()
                self.wfile.write(answer or b"")

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Server()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def path_of(kind: str = "executable", build_id: bytes = ID) -> str:
    return f"/buildid/{build_id.hex()}/{kind}"


def test_downloads_are_cached(server: Server, tmp_path: Path) -> None:
    server.answers[path_of()] = FILE
    client = Debuginfod([server.url + "/"], tmp_path)
    found = client.fetch_executable(ID)
    # as elfutils keeps it: debuginfod-find(1)
    assert found == str(tmp_path / ID.hex() / "executable")
    assert Path(found).read_bytes() == FILE
    assert client.fetch_executable(ID) == found
    assert Debuginfod(["http://127.0.0.1:1"], tmp_path).fetch_executable(ID) == found
    assert server.asked == [path_of()]
    assert [path.name for path in (tmp_path / ID.hex()).iterdir()] == ["executable"]


def test_missing_file_is_requested_once(server: Server, tmp_path: Path) -> None:
    client = Debuginfod([server.url, server.url + "/second"], tmp_path)
    assert client.fetch_debug_file(ID) is None
    assert client.fetch_debug_file(ID) is None
    assert server.asked == [path_of("debuginfo"), "/second" + path_of("debuginfo")]
    assert not list(tmp_path.rglob("*"))


def test_empty_cache_file_means_missing(tmp_path: Path) -> None:
    (tmp_path / ID.hex()).mkdir()
    (tmp_path / ID.hex() / "executable").touch()
    assert Debuginfod([], tmp_path).fetch_executable(ID) is None


def test_empty_cache_file_is_replaced(server: Server, tmp_path: Path) -> None:
    """When it was made nobody had the file."""
    (tmp_path / ID.hex()).mkdir()
    (tmp_path / ID.hex() / "executable").touch()
    server.answers[path_of()] = FILE
    found = Debuginfod([server.url], tmp_path).fetch_executable(ID)
    assert found is not None
    assert Path(found).read_bytes() == FILE
    assert [path.name for path in (tmp_path / ID.hex()).iterdir()] == ["executable"]


def test_second_server_is_tried(server: Server, tmp_path: Path) -> None:
    server.answers["/second" + path_of()] = FILE
    nobody = socket.create_server(("127.0.0.1", 0))
    dead = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    nobody.close()
    client = Debuginfod([dead, server.url, server.url + "/second"], tmp_path)
    assert client.fetch_executable(ID) is not None


def test_silent_server_is_not_tried_again(tmp_path: Path) -> None:
    """It takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = Debuginfod([url], tmp_path, timeout=0.05)
        assert client.fetch_executable(ID) is None
        silent.setblocking(False)
        silent.accept()[0].close()
        assert client.fetch_executable(ID[::-1]) is None
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_transfer_slower_than_the_timeout_is_given_up(server: Server, tmp_path: Path) -> None:
    """Each byte arrives within the timeout; the file as a whole would take minutes."""
    sent = 0

    def trickle(to: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        to.send_response(200)
        to.send_header("Content-Length", "10000")
        to.end_headers()
        with contextlib.suppress(OSError):
            while sent < 9_999:
                # not SIGPIPE: `main` of another test may have set it back to its default
                to.connection.send(b"x", socket.MSG_NOSIGNAL)
                sent += 1
                time.sleep(0.02)

    server.answers[path_of()] = trickle
    assert Debuginfod([server.url], tmp_path, timeout=0.3).fetch_executable(ID) is None
    assert 0 < sent < 9_999
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_file_with_another_build_id_is_not_cached(server: Server, tmp_path: Path) -> None:
    for bad in (b"no ELF file", elf_with_build_id(ID[::-1])):
        server.answers[path_of()] = bad
        assert Debuginfod([server.url], tmp_path).fetch_executable(ID) is None
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    server.answers[path_of()] = FILE
    assert Debuginfod([server.url], tmp_path).fetch_executable(ID) is not None


def test_invalid_answers_are_not_cached(server: Server, tmp_path: Path) -> None:
    """Too large, cut, empty, no HTTP: none, and nothing stays in the cache."""

    def endless(to: BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.end_headers()
        for _ in range(100):
            to.wfile.write(bytes(1000))

    def cut(to: BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.send_header("Content-Length", "1000")
        to.end_headers()
        to.wfile.write(b"short")

    def nonsense(to: BaseHTTPRequestHandler) -> None:
        to.wfile.write(b"\xff" * 100)

    for answer in (endless, cut, b"", nonsense):
        server.answers[path_of()] = answer
        client = Debuginfod([server.url], tmp_path / "cache", max_size=50_000)
        assert client.fetch_executable(ID) is None, answer
        assert not list((tmp_path / "cache").rglob("executable"))
        assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_redirections_stay_with_http(location: str, server: Server, tmp_path: Path) -> None:
    def redirect(to: BaseHTTPRequestHandler) -> None:
        to.send_response(302)
        to.send_header("Location", location)
        to.end_headers()

    server.answers[path_of()] = redirect
    assert Debuginfod([server.url], tmp_path).fetch_executable(ID) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "url", ["file:///etc", "ftp://host", "host", "http://", "http://[", "/etc"]
)
def test_other_url_schemes_raise(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not an http or https URL"):
        Debuginfod([url], tmp_path)


def test_missing_url_raises(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    for urls in (None, " ", "ima:enforcing ima:ignore"):
        if urls is not None:
            monkeypatch.setenv("DEBUGINFOD_URLS", urls)
        assert main(["report", "--debuginfod", "perf.data"]) == 2
        assert "DEBUGINFOD_URLS names no server" in capfd.readouterr().err


def test_ima_words_are_ignored(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """elfutils since 0.192, debuginfod-find(1): ima:MODE says how the servers behind it sign."""
    monkeypatch.setenv("DEBUGINFOD_URLS", f"ima:enforcing {server.url} ima:ignore")
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path))
    server.answers[path_of()] = FILE
    assert Debuginfod.from_environment().fetch_executable(ID) is not None


@pytest.fixture
def gone(
    program: ProgramBuilder, record: Recorder, tmp_path: Path
) -> tuple[Path, Path, str, bytes]:
    """A recording; the program that is gone for who maps it so; the mapping; the build id."""
    path = program("returns")
    live = record([path])
    with PerfData(live.data) as data:
        build_id = data.build_ids[str(path)]
    return live.data, path, f"{path}={tmp_path / 'gone'}", build_id


def test_deleted_program_is_downloaded(
    gone: tuple[Path, Path, str, bytes],
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    data, path, moved, build_id = gone
    assert main(["report", str(data)]) == 0
    expected = capfd.readouterr().out
    monkeypatch.setenv("DEBUGINFOD_URLS", server.url)
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path / "cache"))
    server.answers[path_of(build_id=build_id)] = path.read_bytes()
    # only when it is asked for
    assert main(["report", str(data), "--map", moved]) == 3
    assert server.asked == []
    capfd.readouterr()
    assert main(["report", str(data), "--map", moved, "--debuginfod"]) == 0
    assert capfd.readouterr().out == expected
    # what is packed then has it
    output = str(tmp_path / "pack")
    assert main(["pack", str(data), "--map", moved, "--debuginfod", "-o", output]) == 0
    server.asked.clear()
    capfd.readouterr()
    assert main(["report", output]) == 0
    assert capfd.readouterr().out == expected.replace(str(data), output)
    assert server.asked == []


def test_replaced_program_is_downloaded(
    gone: tuple[Path, Path, str, bytes],
    server: Server,
    program: ProgramBuilder,
    tmp_path: Path,
) -> None:
    """The server says that it is the one; its build id says that it is not."""
    _, path, _, build_id = gone
    server.answers[path_of(build_id=build_id)] = program("recursion").read_bytes()
    files = Files(
        path_map={str(path): "/proc/absent"},
        debuginfod=Debuginfod([server.url], tmp_path / "cache"),
    )
    with pytest.raises(UnusableFile, match="/proc/absent does not exist"):
        files.read_code(str(path), 0, 4096, build_id)


def test_perf_build_id_cache_is_used(
    gone: tuple[Path, Path, str, bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """~/.debug: .build-id/xx/yyy is a link to a folder with the file as `elf`."""
    data, path, moved, build_id = gone
    assert main(["report", str(data)]) == 0
    expected = capfd.readouterr().out
    assert main(["report", str(data), "--map", moved]) == 3
    name = build_id.hex()
    folder = tmp_path / "debug" / str(path).lstrip("/") / name
    folder.mkdir(parents=True)
    (folder / "elf").write_bytes(path.read_bytes())
    link = tmp_path / "debug" / ".build-id" / name[:2] / name[2:]
    link.parent.mkdir(parents=True)
    link.symlink_to(folder)
    capfd.readouterr()
    options = ["--map", moved, "--buildid-dir", str(tmp_path / "debug")]
    assert main(["report", str(data), *options]) == 0
    assert capfd.readouterr().out == expected


@pytest.mark.parametrize(
    ("text", "code"), [("7", 0), ("-7000,0x1000000000000", 0), ("x", 2), ("1,2,3", 2), ("1,-2", 2)]
)
def test_guest_tsc_options_are_accepted(
    text: str, code: int, program: ProgramBuilder, record: Recorder
) -> None:
    """Of a recording without a guest it changes nothing; `tests/flow/test_time.py` has guests."""
    data = str(record([program("returns")]).data)
    assert main(["report", data, f"--guest-tsc={text}"]) == code
