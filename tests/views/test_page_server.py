"""The server of `rtit view`: it answers only who knows the token, and only on this machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread

import pytest

from rtit.errors import UsageError
from rtit.trace import Trace
from rtit.views import perfetto_server
from rtit.views.local_server import listen_locally
from rtit.views.page.page_server import ServedPage, serve_page
from rtit.views.page.single_instructions import single_instructions
from support.browser import BrowserPage
from support.profiles import ProfiledProgram
from support.recordings import RTIT
from views.test_page import LABELS

PAGE = b"<!DOCTYPE html><p>a page"


def ask(*which: int) -> object:
    return {"asked": which}


@contextmanager
def serving(content: ServedPage) -> Iterator[tuple[int, str]]:
    """Serve a page; return the port, and the path of the page with its token."""
    server, url = serve_page(content)
    with server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1], url.partition(f":{server.server_address[1]}")[2]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def served() -> Iterator[tuple[int, str]]:
    with serving(ServedPage(PAGE, lambda: b"timeline", ask, has_perfetto=False)) as found:
        yield found


def get(port: int, path: str, host: str | None = None) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply, body


def test_address_with_token_has_the_page(served: tuple[int, str]) -> None:
    port, path = served
    reply, body = get(port, path)
    assert (reply.status, body) == (200, PAGE)
    assert reply.headers["Referrer-Policy"] == "no-referrer"
    assert reply.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert get(port, path, f"localhost:{port}")[0].status == 200


@pytest.mark.parametrize("path", ["/", "/favicon.ico", "/wrong/", "//", "/wr%F6ng/"])
def test_wrong_token_is_refused(path: str, served: tuple[int, str]) -> None:
    port, right = served
    assert get(port, path)[0].status == 403
    assert get(port, f"{right[:-2]}/")[0].status == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", ""])
def test_other_host_is_refused(host: str, served: tuple[int, str]) -> None:
    port, path = served
    reply, body = get(port, path, host.format(port=port))
    assert reply.status == 403
    assert PAGE not in body


def test_timeline_is_saved_without_perfetto(served: tuple[int, str]) -> None:
    port, path = served
    reply, body = get(port, f"{path}perfetto")
    assert (reply.status, body) == (200, b"timeline")
    assert "calls.pftrace" in reply.headers["Content-Disposition"]
    assert get(port, f"{path}other")[0].status == 404


def test_instructions_are_decoded_on_request(served: tuple[int, str]) -> None:
    port, path = served
    _, body = get(port, f"{path}instructions?tid=7&first=100&count=20")
    assert json.loads(body) == {"asked": [7, 100, 20]}
    _, body = get(port, f"{path}instructions?tid=7")
    assert "expected the numbers" in json.loads(body)["error"]


def test_perfetto_shows_the_timeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(perfetto_server, "perfetto_folder", lambda: tmp_path)
    monkeypatch.setattr(perfetto_server, "PORT", 0)
    with serving(ServedPage(PAGE, lambda: b"timeline", ask, has_perfetto=True)) as (port, path):
        reply, _ = get(port, f"{path}perfetto")
        assert reply.status == 303
        address = reply.headers["Location"].partition("?url=")[2]
        its_port = int(address.partition("127.0.0.1:")[2].partition("/")[0])
        assert get(its_port, "/timeline.pftrace")[1] == b"timeline"
        assert get(its_port, "/timeline.pftrace", "evil.example")[0].status == 403
        assert get(port, f"{path}perfetto")[0].headers["Location"] == reply.headers["Location"]


def test_port_of_perfetto_in_use_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(perfetto_server, "perfetto_folder", lambda: tmp_path)
    with listen_locally(perfetto_server._PerfettoHandler) as other:
        monkeypatch.setattr(perfetto_server, "PORT", other.server_address[1])
        with serving(ServedPage(PAGE, lambda: b"timeline", ask, has_perfetto=True)) as (port, path):
            assert b"is in use" in get(port, f"{path}perfetto")[1]


def wait_for_lines(browser: BrowserPage) -> list[str]:
    """Return the lines of the view of instructions, when they are there."""
    script = """new Promise((done) => {
        const look = () => {
            const found = [...document.querySelectorAll("#view-instructions pre span")];
            if (found.length) done(found.map((each) => each.textContent.trimEnd()));
            else setTimeout(look, 20);
        };
        look();
    })"""
    lines: list[str] = browser.evaluate(script)
    return lines


def list_instructions(data: Path, first: int, end: int) -> list[str]:
    fields = ["--fields", "index,ip,insn,asm,sym", "--index", f"{first}-{end}"]
    command = [*RTIT, "instructions", *fields, str(data)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def list_packets(data: Path) -> list[str]:
    command = [*RTIT, "packets", str(data)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_runs_have_every_packet_of_the_stream(profiled: ProfiledProgram) -> None:
    with Trace(profiled.data) as trace:
        [stream] = trace.streams
        found = single_instructions(trace, stream.tid, 0, 1000)
        offsets = sorted({packet[0] for each in found["packets"].values() for packet in each})
        listed = [row.offset for batch in stream.packets() for row in batch]
        assert len(found["lines"]) == 1000
        assert offsets == listed[: len(offsets)]
        assert {*found["packets"]} <= {int(line.split()[0]) for line in found["lines"]}


def test_instructions_of_unknown_thread_are_refused(profiled: ProfiledProgram) -> None:
    with Trace(profiled.data) as trace, pytest.raises(UsageError):
        single_instructions(trace, 1, 0, 10)


def test_served_page_opens_in_the_browser(profiled: ProfiledProgram, browser: BrowserPage) -> None:
    command = [*RTIT, "view", str(profiled.data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = line.removeprefix("Serving the page at ").removesuffix(" until Ctrl-C\n")
            browser.open(f"{url}#view=timeline")
            status = "document.querySelector('#view-timeline .details').textContent"
            browser.evaluate("document.querySelector('canvas').focus()")
            browser.press("PageDown")
            assert browser.evaluate(status).endswith("callers and callees, instructions")
            links = "[...document.querySelectorAll('a')].map((each) => each.href)"
            assert f"{url}perfetto" in browser.evaluate(links)
            browser.open(f"{url}#view=instructions&first=5000")
            lines = wait_for_lines(browser)
            shown = [line.rstrip() for line in lines if line[:12].strip()]
            assert shown == list_instructions(profiled.data, 5000, 5100)
            packets = {line.partition("  (")[0].strip() for line in lines if not line[:12].strip()}
            assert len(packets) > 2
            listed = list_packets(profiled.data)
            first, last = (listed.index(each) for each in (min(packets), max(packets)))
            assert sorted(packets) == listed[first : last + 1]
            assert browser.evaluate(LABELS) == []
        finally:
            process.terminate()
