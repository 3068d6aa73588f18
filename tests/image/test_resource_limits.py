"""Memory limits of a recording: small files cannot ask for unlimited work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rtit import _core
from rtit.image import Images, Mapping, mapped_files
from support.limits import limit_recordings


def test_process_beyond_memory_limit_loses_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks for more gets no more, and of a process that does not get it nothing is known
    any more: what was there may be something else now.
    """
    limit_recordings(monkeypatch, bytes=1 << 16)
    whole = Images()
    for pid in (7, 8, 9):
        whole.mmap(0, pid, pid, 0x1000, 0x1000, 0, "//anon")
        whole.text_poke(0, pid, 0x1000, b"\xc3")
    asks: list[Callable[[Images, int], None]] = [
        lambda images, n: images.mmap(n, 7, 7, n << 12, 0x1000, 0, "//anon"),
        lambda images, n: images.mmap(n, 7, 7, n << 12, 0x1000, 0, f"/nowhere/{n}"),
        lambda images, n: images.text_poke(n, 7, n, b"\x90"),
        lambda images, n: images.add_jit_function(
            7, n << 12, b"\x90", Mapping(0, 1 << 40, 0, "[jit]", None, n)
        ),
        lambda images, n: images.exec(n, 7),
        lambda images, n: images.fork(n, n + 100, 8, n + 100),
        lambda images, n: images.fork(n, 7, 8, 7),
    ]
    for ask in asks:
        images = Images()
        for pid in (7, 8, 9):
            images.mmap(0, pid, pid, 0x1000, 0x1000, 0, "//anon")
            images.text_poke(0, pid, 0x1000, b"\xc3")
        for number in range(2, 2000):
            ask(images, number)
        assert any(problem.path == "mappings" for problem in images.problems)
        kept = sum(len(list(images.mappings(pid))) for pid in images.pids)
        assert kept <= (1 << 16) // 160
        # one that asked for nothing more has what it had; of one that does nothing is known
        assert images.image(9).read(0x1000, 1, time=5000) == b"\xc3"
        images.text_poke(3000, 9, 0x1001, b"\xc3")
        assert images.image(9).read(0x1000, 1, time=2999) == b"\xc3"
        assert images.image(9).read(0x1000, 1, time=3000) == b""
        assert images.mappings(9).current_mapping_count == 0
    assert not whole.problems


def test_repeated_mapping_needs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of protection is a record like that of the mapping."""
    limit_recordings(monkeypatch, bytes=1 << 16)
    images = Images()
    for number in range(1000):
        images.mmap(number, 7, 7, 0x1000, 0x1000, 0, "//anon")
    assert not images.problems
    assert images.mappings(7).current_mapping_count == 1


def test_names_and_gaps_count_against_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_recordings(monkeypatch, bytes=1 << 16)
    for name in ("[" + "x" * 4000, "[" + "\N{GRINNING FACE}" * 1000):
        images = Images()
        for number in range(16):
            images.mmap(number, 7, 7, number << 12, 0x1000, 0, f"{name}{number}")
        assert len(images.problems) == 1
    images = Images()
    for number in range(64):
        images.mmap(number, 7, 7, number << 16, 0x1000, 0, "[a]")
    assert not images.problems
    # one that goes around all these makes as many parts, and one over it ends them
    images.mmap(100, 7, 7, 0, 1 << 24, 0, "[a]")
    images.mmap(101, 7, 7, 0, 1 << 24, 0, "[b]")
    assert len(images.problems) == 1


def test_known_file_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_recordings(monkeypatch, bytes=1 << 16)
    build_id = bytes(range(20))
    for known in ({}, {"/nowhere": build_id}):
        images = Images(build_ids=known)
        for number in range(100):
            images.mmap(0, 7, 7, number << 12, 0x1000, 0, "/nowhere")
        assert len(images.problems) == 1


def test_mapping_over_many_is_not_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    same_source = Mapping.has_same_source

    def counted(one: Mapping, other: Mapping) -> bool:
        nonlocal compared
        compared += 1
        return same_source(one, other)

    monkeypatch.setattr(Mapping, "has_same_source", counted)
    images = Images()
    count = 1000
    for number in range(count):
        images.mmap(number, 7, 7, 0x1000 + number * 0x2000, 0x1000, 0, "//anon")
    for number in range(count):
        images.mmap(count + number, 7, 7, 0x1000, count * 0x2000, 0, "//anon")
    assert compared < 10 * count
    assert images.mappings(7).current_mapping_count == 1
    assert len(list(images.mappings(7))) == count + 1


def test_inherited_mapping_starts_at_fork() -> None:
    images = Images()
    images.mmap(1, 7, 7, 0x1000, 0x1000, 0, "//anon")
    images.mmap(2, 7, 7, 0x3000, 0x1000, 0, "//anon")
    images.fork(5, 8, 7, 8, 7)
    images.mmap(9, 8, 8, 0x3000, 0x1000, 0, "/nowhere")
    assert [(each.start, each.since) for each in images.mappings(7)] == [(0x1000, 0), (0x3000, 0)]
    own = [(each.start, each.path, each.since, each.until) for each in images.mappings(8)]
    assert own[:2] == [(0x3000, "//anon", 5, 9), (0x1000, "//anon", 5, (1 << 64) - 1)]
    assert own[2][:3] == (0x3000, "/nowhere", 9)


def test_overlapping_reads_of_file_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read of it, however it is mapped, is at most twice its size."""
    path = tmp_path / "file"
    data = bytes(range(256)) * 1600
    path.write_bytes(data)
    taken = 0
    read = mapped_files._read_unchanged_file

    def counted(path: str, file: mapped_files._OpenedFile, offset: int, size: int) -> _core.Code:
        nonlocal taken
        taken += size
        return read(path, file, offset, size)

    monkeypatch.setattr(mapped_files, "_read_unchanged_file", counted)
    found = mapped_files.Files()
    for number in range(100):
        code = found.read_code(str(path), number * 4096, len(data) - number * 4096)
        assert bytes(code) == data[number * 4096 :]
    assert taken <= 2 * len(data)


def test_code_of_all_files_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_files, "_MAX_CODE", 10_000)
    images = Images()
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 4096)
        images.mmap(0, 7, 7, ord(name) << 16, 4096, 0, str(tmp_path / name))
    assert [problem.path for problem in images.problems] == [str(tmp_path / "c")]
    assert images.image(7).read(ord("b") << 16, 3) == b"bbb"


def test_sparse_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 28)
    if path.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("the file system keeps no holes")
    images = Images()
    images.mmap(0, 7, 7, 0x10000, 1 << 28, 0, str(path))
    (problem,) = images.problems
    assert (problem.kind, problem.value) == ("unreadable", 1 << 28)
    assert "holes" in problem.message
