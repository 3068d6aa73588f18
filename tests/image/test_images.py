"""Images: sideband events to one image for each process."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rtit.image import Images, Problem
from rtit.image.debug_files import open_if_build_id

pytest.importorskip("rtit._core", reason="the native module is not built")

PAGE = 4096


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A file that is no ELF, three pages less some bytes: each byte tells its page."""
    path = tmp_path / "raw"
    path.write_bytes(b"\0" * PAGE + b"\1" * PAGE + b"\2" * (PAGE - 100))
    return path


def kinds(images: Images) -> list[str]:
    return [problem.kind for problem in images.problems]


def test_mapping_has_the_bytes_of_the_file_from_its_offset(raw: Path) -> None:
    images = Images()
    images.mmap(10, 1, 1, 0x10000, 2 * PAGE, PAGE, str(raw))
    space = images.image(1).native
    assert space.read(10, 0x10000 + PAGE - 1, 2) == b"\1\2"
    # behind the end of the file there is nothing to decode
    assert len(space.read(10, 0x10000, 3 * PAGE)) == 2 * PAGE - 100
    assert not images.problems


def test_threads_share_image_and_processes_do_not(raw: Path) -> None:
    images = Images()
    images.mmap(10, 1, 1, 0x10000, PAGE, 0, str(raw))
    images.fork(20, 1, 1, 2, 1)  # a thread
    images.fork(20, 3, 1, 3, 1)  # a process
    images.mmap(30, 1, 2, 0x20000, PAGE, PAGE, str(raw))
    assert images.image(1).native is images.image(2).native
    assert (images.pid(2), images.pid(3), images.pid(99)) == (1, 3, 99)
    assert images.image(1).native.read(30, 0x20000, 1) == b"\1"
    assert images.image(3).native.read(30, 0x20000, 1) == b""
    assert images.image(3).native.read(30, 0x10000, 1) == b"\0"
    assert images.pids == [1, 3]


def test_exec_drops_the_old_program(raw: Path) -> None:
    images = Images()
    images.mmap(10, 1, 1, 0x10000, PAGE, 0, str(raw))
    images.exec(20, 1, 1)
    images.mmap(21, 1, 1, 0x20000, PAGE, 0, str(raw))
    space = images.image(1).native
    assert (space.read(19, 0x10000, 1), space.read(20, 0x10000, 1)) == (b"\0", b"")
    assert (space.read(19, 0x20000, 1), space.read(20, 0x20000, 1)) == (b"", b"\0")


def test_reused_pid_is_copy_of_parent(raw: Path) -> None:
    images = Images()
    images.mmap(0, 1, 1, 0x10000, PAGE, 0, str(raw))
    images.mmap(5, 2, 2, 0x20000, PAGE, PAGE, str(raw))
    images.fork(50, 2, 1, 2, 1)
    space = images.image(2).native
    assert (space.read(49, 0x20000, 1), space.read(49, 0x10000, 1)) == (b"\1", b"")
    assert (space.read(50, 0x20000, 1), space.read(50, 0x10000, 1)) == (b"", b"\0")


def test_memory_without_a_file_has_the_bytes_that_were_written() -> None:
    images = Images()
    for path in ("[vdso]", "//anon", "anon_inode:[perf]", "/memfd:jit (deleted)"):
        images.mmap(10, 1, 1, 0x10000, PAGE, 0, path)
        assert images.image(1).native.read(10, 0x10000, 4) == b""
    images.text_poke(11, 1, 0x10010, b"\xc3")
    images.mmap(12, 1, 1, 0x10000, PAGE, 0, "/memfd:jit (deleted)")  # mprotect
    assert images.image(1).native.read(12, 0x10010, 4) == b"\xc3"
    assert not images.problems


def test_protecting_a_file_mapping_again_keeps_what_was_written(raw: Path) -> None:
    images = Images()
    images.mmap(10, 1, 1, 0x10000, 2 * PAGE, 0, str(raw))
    images.text_poke(20, 1, 0x10004, b"\xcc")
    images.mmap(30, 1, 1, 0x11000, PAGE, PAGE, str(raw))
    images.mmap(30, 1, 1, 0x10000, PAGE, 0, str(raw))
    assert images.image(1).native.read(30, 0x10004, 1) == b"\xcc"
    assert len(list(images.mappings(1))) == 1


def test_new_mapping_hides_old_code(raw: Path) -> None:
    images = Images()
    images.mmap(10, 1, 1, 0x10000, 2 * PAGE, 0, str(raw))
    images.mmap(20, 1, 1, 0x11000, PAGE, 0, "//anon")
    images.mmap(30, 1, 1, 0x10000, PAGE, PAGE, "/does/not/exist")
    space = images.image(1).native
    assert len(space.read(19, 0x10000, 2 * PAGE)) == 2 * PAGE
    assert len(space.read(20, 0x10000, 2 * PAGE)) == PAGE
    assert space.read(30, 0x10000, 1) == b""
    assert kinds(images) == ["missing"]


def test_data_kernel_and_empty_mappings_are_ignored(raw: Path) -> None:
    images = Images()
    images.mmap(0, 1, 1, 0x10000, PAGE, 0, str(raw), executable=False)
    images.mmap(0, 1, 1, 0xFFFFFFFF81000000, PAGE, 0, "[kernel.kallsyms]_text")
    images.mmap(0, 1, 1, 0x10000, 0, 0, str(raw))
    images.mmap(0, 1, 1, (1 << 64) - 1, (1 << 64) - 1, 0, str(raw))
    images.text_poke(0, 1, 0xFFFFFFFF81000000, b"\xc3")
    assert images.image(1).native.changes == 0


def test_unusable_file_is_reported_once(raw: Path, tmp_path: Path) -> None:
    images = Images()
    for pid in (1, 2):
        images.mmap(0, pid, pid, 0x10000, PAGE, 0, "/no/such/file")
        images.mmap(0, pid, pid, 0x20000, PAGE, 0, str(tmp_path))
        images.mmap(0, pid, pid, 0x30000, 4 * PAGE, 0, str(raw))
        images.mmap(0, pid, pid, 0x40000, PAGE, (1 << 64) - PAGE, str(raw))
    assert kinds(images) == ["missing", "unreadable", "truncated"]
    assert images.problems[2] == Problem("truncated", str(raw), images.problems[2].message, 12188)
    assert all(images.image(1).native.read(9, at << 16, 1) == b"" for at in range(1, 5))
    assert [mapping.problem is not None for mapping in images.mappings(2)] == [True] * 4


@pytest.mark.parametrize("name", ["/proc/self/status", "/proc/version", "/sys/kernel/notes"])
def test_pseudo_files_are_not_opened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regular by their type, as are those that block who reads them (/proc/kmsg, trace_pipe)."""
    if not Path(name).is_file():
        pytest.skip(f"{name} is not here")
    opened = Path.open

    def watched(path: Path, *arguments: Any, **options: Any) -> Any:
        assert str(path) != name
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", watched)
    images = Images()
    images.mmap(1, 7, 7, 0x1000, 4096, 0, name)
    [problem] = images.problems
    assert "no file on a disk" in problem.message


@pytest.mark.parametrize("how", ["path", "link", "symfs", "build id", "debug link"])
def test_a_pipe_is_never_opened(how: str, raw: Path, tmp_path: Path) -> None:
    """It would wait for a writer that never comes, wherever a file's name leads to it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    build_id = bytes(range(20))
    options: dict[str, Any] = {}
    name = str(pipe)
    if how == "link":
        (tmp_path / "link").symlink_to(pipe)
        name = str(tmp_path / "link")
    elif how == "symfs":
        name, options["symfs"] = "/pipe", tmp_path
    elif how == "build id":
        place = tmp_path / "cache" / ".build-id" / "00" / build_id.hex()[2:]
        place.mkdir(parents=True)
        pipe.rename(place / "elf")
        name, options["build_id_cache"] = "/proc/absent/file", tmp_path / "cache"
    elif how == "debug link":
        assert open_if_build_id(pipe, build_id) is None
        return
    images = Images(**options)
    images.mmap(1, 7, 7, 0x1000, 4096, 0, name, build_id=build_id)
    [problem] = images.problems
    assert "not a regular file" in problem.message or "does not exist" in problem.message
    assert images.files.symbols(name, build_id) is None


def test_folder_without_pseudo_file_system_is_read(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a change of root without /proc: files beside it are files."""
    monkeypatch.setattr("rtit.image.mapped_files._PSEUDO", (str(tmp_path), "/nowhere"))
    images = Images()
    images.mmap(1, 7, 7, 0x1000, 4096, 0, str(raw))
    assert images.problems == []


def test_a_file_changed_after_the_recording_is_not_decoded(raw: Path) -> None:
    for recorded, expected in ((raw.stat().st_mtime + 1, []), (1.0, ["changed"])):
        images = Images(recorded=recorded)
        images.mmap(0, 1, 1, 0x10000, PAGE, 0, str(raw))
        assert kinds(images) == expected


def test_a_file_changed_while_in_use_is_not_decoded(raw: Path) -> None:
    images = Images()
    images.mmap(0, 1, 1, 0x10000, PAGE, 0, str(raw))
    raw.write_bytes(b"\7" * 3 * PAGE)
    os.utime(raw, ns=(1, 1))
    images.mmap(0, 1, 1, 0x20000, PAGE, PAGE, str(raw))
    assert kinds(images) == ["changed"]
    assert images.image(1).native.read(0, 0x20000, 1) == b""


def test_recorded_paths_are_looked_up_elsewhere(raw: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "usr/lib").mkdir(parents=True)
    shutil.copy(raw, root / "usr/lib/code")
    for images in (
        Images(symfs=root),
        Images(path_map={"/usr/lib": str(root / "usr/lib"), "/usr": "/nowhere"}),
        Images(path_map={"/usr/lib/code": str(raw)}, symfs="/nowhere"),
    ):
        images.mmap(0, 1, 1, 0x10000, PAGE, 0, "/usr/lib/code")
        assert images.image(1).native.read(0, 0x10000, 1) == b"\0"
        assert not images.problems


def build(folder: Path, build_id: str) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no compiler")
    out = folder / f"lib{build_id}.so"
    (folder / "f.s").write_text(".globl f\nf: ret\n")
    flags = ["-shared", "-nostdlib", f"-Wl,--build-id=0x{build_id}"]
    subprocess.run(["gcc", *flags, "-o", out, folder / "f.s"], check=True)
    return out


def test_build_id_identifies_recorded_file(tmp_path: Path) -> None:
    path = str(build(tmp_path, "aabbccdd"))
    good, padded, bad = bytes.fromhex("aabbccdd"), bytes.fromhex("aabbccdd" + "00" * 16), b"\1\2"
    for build_id, table, expected in (
        (good, {}, []),
        (padded, {}, []),
        (None, {path: good}, []),
        (None, {path: bad}, ["changed"]),
        (bytes(20), {path: bad}, ["changed"]),
        (bad, {path: good}, ["changed"]),
    ):
        images = Images(build_ids=table, recorded=None)
        images.mmap(0, 1, 1, 0x10000, PAGE, 0, path, build_id=build_id)
        assert kinds(images) == expected
        assert bool(images.image(1).native.read(0, 0x10000, 1)) == (not expected)
    assert "build id aabbccdd, recorded was 0102" in images.problems[0].message
    assert images.problems[0].value == "aabbccdd"


def test_file_without_recorded_build_id_is_refused(raw: Path) -> None:
    images = Images()
    images.mmap(0, 1, 1, 0x10000, PAGE, 0, str(raw), build_id=b"\1")
    assert kinds(images) == ["changed"]


def test_build_id_cache_replaces_missing_file(tmp_path: Path) -> None:
    kept = build(tmp_path, "aabbccdd")
    place = tmp_path / "cache/.build-id/aa/bbccdd"
    place.mkdir(parents=True)
    shutil.copy(kept, place / "elf")
    images = Images(build_id_cache=tmp_path / "cache")
    images.mmap(0, 1, 1, 0x10000, PAGE, 0, "/gone", build_id=bytes.fromhex("aabbccdd"))
    assert images.image(1).native.read(0, 0x10000, 4) == b"\x7fELF"
    assert not images.problems


def test_a_missing_file_hides_code_written_before() -> None:
    images = Images()
    images.text_poke(10, 1, 0x10000, b"\xc3")
    images.mmap(20, 1, 1, 0x10000, PAGE, 0, "/missing")
    assert images.image(1).native.read(19, 0x10000, 1) == b"\xc3"
    assert images.image(1).native.read(20, 0x10000, 1) == b""
