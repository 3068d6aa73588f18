"""Packs that nobody wrote: one sentence, nothing outside of a folder of ours, nothing unbounded."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import rtit
from rtit.cli.main import main
from rtit.errors import InputError, RtitError
from rtit.trace.recording import packs
from support.properties import examples
from support.recordings import Recorder

ProgramBuilder = Callable[[str], Path]
CHANGES = examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="session")
def good(
    program: ProgramBuilder, record: Recorder, tmp_path_factory: pytest.TempPathFactory
) -> bytes:
    output = tmp_path_factory.mktemp("packs") / "good"
    assert main(["pack", str(record([program("returns")]).data), "-o", str(output)]) == 0
    return output.read_bytes()


def said(good: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        found: dict[str, Any] = json.loads(archive.read(packs.MANIFEST))
    return found


def made(path: Path, members: dict[str, bytes], contents: object) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        if contents is not None:
            archive.writestr(packs.MANIFEST, json.dumps(contents))
    return path


def members(good: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != packs.MANIFEST}


def refused(path: Path, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one error, and an empty folder for what is temporary."""
    temporary = path.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with pytest.raises(InputError, match=match) as caught:
        rtit.Trace(path)
    assert str(path) in str(caught.value)
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(
    "name",
    [
        "../escaped",
        "/tmp/escaped",
        "recording/../../escaped",
        "recording/../escaped",
        "recording/.hidden",
        "recording/a/b/c",
        "recording/",
        "recording/a\0b",
        "files/../../escaped",
        "files/x",
        7,
        None,
    ],
)
@pytest.mark.parametrize("where", ["recording", "file", "debug"])
def test_names_are_no_paths(
    name: Any, where: str, good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = said(good)
    if where == "recording":
        contents["recording"] = [name]
    elif name is None:
        return
    else:
        contents["files"][0][where] = name
    path = made(tmp_path / "bad", {**members(good), str(name): b"bad"}, contents)
    refused(path, "its list names", monkeypatch)
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2),
        ("format", None),
        ("recording", []),
        ("recording", "recording/perf.data"),
        ("recording", {}),
        ("folder", 3),
        ("modified", "yesterday"),
        ("modified", 1e300),
        ("files", 7),
        ("files", [7]),
        ("files", [{}]),
        ("guest_processes", [[1, None, 1, []]] * 2),
        ("recording", ["recording/missing"]),
    ],
)
def test_a_list_that_says_something_else(
    key: str, value: Any, good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {**said(good), key: value}
    refused(made(tmp_path / "bad", members(good), contents), "no .*pack", monkeypatch)


@pytest.mark.parametrize("contents", [None, [], 7, "rtit"])
def test_no_list(
    contents: object, good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(made(tmp_path / "bad", members(good), contents), "no .*pack", monkeypatch)


def test_json_beyond_measure(good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (b"[" * 200_000, b" " * (1 << 25), b"\xff\xfe"):
        path = made(tmp_path / "bad", {packs.MANIFEST: text, **members(good)}, None)
        refused(path, "no .*pack", monkeypatch)


def test_a_bomb(good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by what the members say, before anything is written; what says less than it grows to
    ends there.
    """
    monkeypatch.setattr("rtit.trace.recording.packs.MIN_SIZE_LIMIT", 1 << 20)
    contents = {**said(good), "recording": ["recording/perf.data", "recording/bomb"]}
    path = made(tmp_path / "bad", {**members(good), "recording/bomb": bytes(1 << 25)}, contents)
    refused(path, "it would grow from", monkeypatch)
    data = path.read_bytes()
    at = data.rindex(b"recording/bomb") - 46
    assert struct.unpack_from("<I", data, at + 24) == (1 << 25,)
    path.write_bytes(data[: at + 24] + struct.pack("<I", 1000) + data[at + 28 :])
    refused(path, "no .*pack", monkeypatch)


def test_a_directory_without_end(
    good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sparse file whose end says that its directory is all of it."""
    path = tmp_path / "bad"
    size = 10 << 30
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFF0, 4, 0)
    with path.open("wb") as file:
        file.write(good[:4])
        file.truncate(size)
        file.seek(0, 2)
        file.write(end)
    refused(path, "no .*pack", monkeypatch)


def test_encrypted_or_compressed_otherwise(
    good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bit of encryption, and a method that is not known, of each member in the directory."""
    for offset, value in ((8, b"\x01"), (10, b"\x63")):
        data = bytearray(good)
        at = data.rindex(b"recording/perf.data") - 46
        data[at + offset : at + offset + 1] = value
        path = tmp_path / "bad"
        path.write_bytes(data)
        refused(path, "no .*pack", monkeypatch)


def test_cut_anywhere(good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad"
    for size in range(4, len(good), max(1, len(good) // 200)):
        path.write_bytes(good[:size])
        refused(path, "no .*pack", monkeypatch)


@CHANGES
@given(data=st.data())
def test_any_byte_may_be_wrong(data: st.DataObject, good: bytes, tmp_path: Path) -> None:
    """It opens, or is refused with an error of ours; CRCs hold what is opened."""
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(4, len(bad) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "bad"
    path.write_bytes(bad)
    with contextlib.suppress(RtitError), rtit.Trace(path) as trace:
        assert trace.streams[0].counts().instructions > 0


def test_another_zip(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = made(tmp_path / "other.zip", {"hello": b"world"}, None)
    assert main(["report", str(path)]) == 1
    assert len(capfd.readouterr().err.splitlines()) == 1
