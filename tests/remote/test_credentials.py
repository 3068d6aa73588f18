"""A password or token in a URL reaches the server, and nothing that rtit prints or returns."""

from __future__ import annotations

import base64
import json
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

import rtit
from rtit.errors import RtitError
from rtit.remote_files import display_name, without_credentials
from support.remote import RangeHandler, RangeServer, RunCommand

USER, PASSWORD, TOKEN = "Jane.Doe", "p4ssw0rd", "abcdef0123456789"
QUERY = f"?X-Amz-Credential=AKIAEXAMPLEKEY%2Fus&X-Amz-Signature={TOKEN}"
SECRETS = (USER, PASSWORD, TOKEN, "X-Amz", "AKIAEXAMPLEKEY")
COMMANDS = (
    ["report"],
    ["report", "--json"],
    ["info"],
    ["info", "--json"],
    ["coverage"],
    ["coverage", "--format", "html"],
    ["stat"],
    ["stat", "--json"],
    ["stat", "--format", "github-benchmark"],
    ["stat", "--format", "markdown"],
    ["profile", "--for", "pprof"],
    ["profile", "--for", "callgrind"],
    ["profile", "--for", "bolt"],
    ["profile", "--for", "perf"],
    ["calls"],
    ["calls", "--json"],
    ["calls", "--flamegraph"],
    ["calls", "--speedscope"],
    ["timeline"],
    ["view", "-o", "-"],
    ["instructions", "--head", "5", "--fields", "time,ip,asm"],
    ["branches", "--head", "5"],
    ["edges"],
    ["packets", "--head", "5", "--json"],
    ["annotate", "_start"],
)


@pytest.fixture
def url(server: RangeServer, recording: Path) -> str:
    """Return the URL of a recording, with a password and a token that the server needs."""

    def answer(handler: RangeHandler, content: bytes) -> None:
        expected = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        assert handler.headers["Authorization"] == f"Basic {expected}"
        assert TOKEN in handler.path
        handler.send_range(content)

    server.files["/runs/perf.data"] = recording.read_bytes()
    server.files["/runs/broken.data"] = b"no recording"
    server.answer = answer
    return server.url("/runs/perf.data", user=f"{USER}:{PASSWORD}") + QUERY


def assert_no_secrets(*texts: object) -> None:
    for text in texts:
        shown = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        assert [secret for secret in SECRETS if secret in shown] == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_output_has_no_credentials(words: list[str], url: str, run: RunCommand) -> None:
    code, out, errors = run([*words, url])
    assert code == 0, errors
    assert out
    assert_no_secrets(out, errors)


@pytest.mark.parametrize(
    "words", [["stat", "--json"], ["coverage", "--format", "html"], ["profile", "--for", "bolt"]]
)
def test_sum_of_recordings_has_no_credentials(words: list[str], url: str, run: RunCommand) -> None:
    """The code of a profile is read in another process than its counts."""
    broken = url.replace("perf.data", "broken.data")
    for jobs in ("1", "2"):
        code, out, errors = run([*words, "--jobs", jobs, url, broken, url])
        assert code == 3
        assert b"broken.data" in errors
        assert_no_secrets(out, errors)


def test_error_of_a_file_system_that_repeats_the_token_is_not_shown(run: RunCommand) -> None:
    fsspec = pytest.importorskip("fsspec")
    base: Any = fsspec.AbstractFileSystem

    class LeakyFileSystem(base):  # type: ignore[misc]  # fsspec has no types
        protocol = "leaky"

        def info(self, path: str, **_: object) -> dict[str, object]:
            raise ValueError(f"{path} has no signature {TOKEN}")

    fsspec.register_implementation("leaky", LeakyFileSystem, clobber=True)
    code, out, errors = run(["report", f"leaky://bucket/a.data?{TOKEN}"])
    assert code == 1
    assert errors == b"rtit report: leaky://bucket/a.data: cannot be read: ValueError\n"
    assert_no_secrets(out, errors)


def test_comparison_of_urls_prints_no_credentials(url: str, run: RunCommand) -> None:
    for words in (["diff", url, url], ["annotate", "_start", url, "--diff", url]):
        code, out, errors = run(words)
        assert code == 0
        assert_no_secrets(out, errors)


def test_history_and_pack_have_no_credentials(url: str, run: RunCommand, tmp_path: Path) -> None:
    history, pack = tmp_path / "history", tmp_path / "a.rtit.zip"
    assert run(["stat", "--history", history, url])[0] == 0
    assert_no_secrets(history.read_bytes())
    code, out, errors = run(["pack", url, "-o", pack])
    assert code == 0
    assert_no_secrets(out, errors, pack.read_bytes())
    code, out, errors = run(["pack", url])
    assert code == 2
    assert_no_secrets(out, errors)


@pytest.mark.parametrize("name", ["broken.data", "missing.data", "*.data"])
@pytest.mark.parametrize(
    "words", [["report"], ["stat", "--jobs", "2"], ["coverage", "--by-test"], ["report", "extra"]]
)
def test_errors_have_no_credentials(name: str, words: list[str], url: str, run: RunCommand) -> None:
    wrong = url.replace("perf.data", name)
    code, out, errors = run([*words, wrong, *[url] * (words[0] == "stat")])
    assert code
    assert_no_secrets(out, errors)
    assert_no_secrets(*run([*words, wrong, "-i", wrong])[1:])


@pytest.mark.parametrize("status", [401, 403, 500])
def test_answer_of_the_server_is_reported_without_credentials(
    status: int, url: str, server: RangeServer, run: RunCommand
) -> None:
    server.answer = lambda handler, _: handler.send_error(status, message=handler.path)
    code, out, errors = run(["report", url])
    assert code == 1
    assert f"the server answers {status}".encode() in errors
    assert_no_secrets(out, errors)


@pytest.mark.parametrize(
    "wrong",
    [
        "nosuch://{}@host/a.data{}",
        "http://{}@host:port/a.data{}",
        "http://{}@127.0.0.1:1/a.data{}",
        "http://{}@[::bad/a.data{}",
        "s3://{}@bucket/a.data{}",
        "zip://*.data::http://{}@127.0.0.1:1/a.zip{}",
        "simplecache::http://{}@127.0.0.1:1/a.data{}",
    ],
)
def test_traceback_of_an_error_has_no_credentials(wrong: str, run: RunCommand) -> None:
    wrong = wrong.format(f"{USER}:{PASSWORD}", QUERY)
    with pytest.raises(RtitError) as caught:
        rtit.Trace(wrong)
    error = caught.value
    assert_no_secrets(error, repr(error), *traceback.format_exception_only(error))
    assert error.__context__ is None
    assert_no_secrets(*run(["report", wrong])[1:])


def test_objects_show_no_credentials(url: str) -> None:
    [(path, trace)] = rtit.open_many(url)
    assert isinstance(trace, rtit.Trace)
    assert_no_secrets(path, trace, trace.path)
    [(path, error)] = rtit.open_many(url.replace("perf.data", "broken.data"))
    assert isinstance(error, RtitError)
    assert_no_secrets(path, error, pickle.dumps(error))


def test_report_names_the_url_without_credentials(
    url: str, server: RangeServer, run: RunCommand
) -> None:
    _, out, _ = run(["report", "--json", url])
    assert json.loads(out)["file"] == server.url("/runs/perf.data")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/a.data", "https://host/a.data"),
        ("https://host:8080/a.data?token=1#part", "https://host:8080/a.data"),
        ("https://user:password@host/a@b.data", "https://host/a@b.data"),
        ("https://user:pass/word@host/a.data?t=1", "https://host/a.data"),
        ("HTTPS://user@host", "HTTPS://host"),
        ("s3://key:secret@bucket/run#1.data", "s3://bucket/run#1.data"),
        ("zip://a?x::https://u:p@h/a.zip?t", "zip://a::https://h/a.zip"),
        ("memory://a/b.data", "memory://a/b.data"),
        ("a?b@c.data", "a?b@c.data"),
    ],
)
def test_display_name_of_a_url_has_no_credentials(url: str, shown: str) -> None:
    assert display_name(url) == shown
    assert without_credentials(f"cannot read {url!r}: no") == f"cannot read {shown!r}: no"
