"""Damaged or hostile packs: one error, no files outside of the temporary folder, bounded work."""

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
def valid_pack(
    program: ProgramBuilder, record: Recorder, tmp_path_factory: pytest.TempPathFactory
) -> bytes:
    output = tmp_path_factory.mktemp("packs") / "good"
    assert main(["pack", str(record([program("returns")]).data), "-o", str(output)]) == 0
    return output.read_bytes()


def error_text(valid_pack: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(valid_pack)) as archive:
        found: dict[str, Any] = json.loads(archive.read(packs.MANIFEST))
    return found


def write_pack(path: Path, members: dict[str, bytes], contents: object) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        if contents is not None:
            archive.writestr(packs.MANIFEST, json.dumps(contents))
    return path


def members(valid_pack: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(valid_pack)) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != packs.MANIFEST}


def assert_rejected(path: Path, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that opening raises one error and leaves no temporary files."""
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
def test_member_names_with_paths_are_rejected(
    name: Any, where: str, valid_pack: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = error_text(valid_pack)
    if where == "recording":
        contents["recording"] = [name]
    elif name is None:
        return
    else:
        contents["files"][0][where] = name
    path = write_pack(tmp_path / "bad", {**members(valid_pack), str(name): b"bad"}, contents)
    assert_rejected(path, "its list names", monkeypatch)
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
def test_contradictory_manifest_is_rejected(
    key: str, value: Any, valid_pack: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {**error_text(valid_pack), key: value}
    assert_rejected(
        write_pack(tmp_path / "bad", members(valid_pack), contents), "not a .*pack", monkeypatch
    )


@pytest.mark.parametrize("contents", [None, [], 7, "rtit"])
def test_missing_manifest_is_rejected(
    contents: object, valid_pack: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_rejected(
        write_pack(tmp_path / "bad", members(valid_pack), contents), "not a .*pack", monkeypatch
    )


def test_oversized_manifest_is_rejected(
    valid_pack: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in (b"[" * 200_000, b" " * (1 << 25), b"\xff\xfe"):
        path = write_pack(tmp_path / "bad", {packs.MANIFEST: text, **members(valid_pack)}, None)
        assert_rejected(path, "not a .*pack", monkeypatch)


def test_zip_bomb_is_rejected(
    valid_pack: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejected by the declared sizes before anything is written; a member with a smaller declared
    size stops there.
    """
    monkeypatch.setattr("rtit.trace.recording.packs.MIN_SIZE_LIMIT", 1 << 20)
    contents = {**error_text(valid_pack), "recording": ["recording/perf.data", "recording/bomb"]}
    path = write_pack(
        tmp_path / "bad", {**members(valid_pack), "recording/bomb": bytes(1 << 25)}, contents
    )
    assert_rejected(path, "it would grow from", monkeypatch)
    data = path.read_bytes()
    at = data.rindex(b"recording/bomb") - 46
    assert struct.unpack_from("<I", data, at + 24) == (1 << 25,)
    path.write_bytes(data[: at + 24] + struct.pack("<I", 1000) + data[at + 28 :])
    assert_rejected(path, "not a .*pack", monkeypatch)


def test_endless_zip_directory_is_rejected(
    valid_pack: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sparse file whose end record claims that the directory is the whole file."""
    path = tmp_path / "bad"
    size = 10 << 30
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFF0, 4, 0)
    with path.open("wb") as file:
        file.write(valid_pack[:4])
        file.truncate(size)
        file.seek(0, 2)
        file.write(end)
    assert_rejected(path, "not a .*pack", monkeypatch)


def test_encryption_and_unknown_compression_are_rejected(
    valid_pack: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set the encryption bit, or an unknown method, of each member in the directory."""
    for offset, value in ((8, b"\x01"), (10, b"\x63")):
        data = bytearray(valid_pack)
        at = data.rindex(b"recording/perf.data") - 46
        data[at + offset : at + offset + 1] = value
        path = tmp_path / "bad"
        path.write_bytes(data)
        assert_rejected(path, "not a .*pack", monkeypatch)


def test_truncated_pack_is_rejected(
    valid_pack: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bad"
    for size in range(4, len(valid_pack), max(1, len(valid_pack) // 200)):
        path.write_bytes(valid_pack[:size])
        assert_rejected(path, "not a .*pack", monkeypatch)


@CHANGES
@given(data=st.data())
def test_flipped_bytes_give_result_or_error(
    data: st.DataObject, valid_pack: bytes, tmp_path: Path
) -> None:
    """The pack opens, or is rejected with an error of rtit; CRCs check the contents."""
    bad = bytearray(valid_pack)
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(4, len(bad) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "bad"
    path.write_bytes(bad)
    with contextlib.suppress(RtitError), rtit.Trace(path) as trace:
        assert trace.streams[0].counts().instructions > 0


def test_other_zip_file_is_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_pack(tmp_path / "other.zip", {"hello": b"world"}, None)
    assert main(["report", str(path)]) == 1
    assert len(capfd.readouterr().err.splitlines()) == 1
