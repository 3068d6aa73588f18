"""Files deleted before the recording ends: the recording has their code, or names them."""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtit._core import ElfFile
from rtit.capture.events import MmapEvent
from rtit.capture.store.deleted_files import DeletedFiles, MappingLocation, build_id_in
from rtit.image import Images

CODE = bytes(range(256)) * 20
PAGES = CODE.ljust(0x2000, b"\0")
LOCATION = MappingLocation(7, 8, 100, 0x40_0000, 0x2000)


@pytest.fixture
def deleted_files() -> Iterator[DeletedFiles]:
    """Of a recording that begins when the files have been made."""
    made = DeletedFiles()
    begin_later(made)
    yield made
    made.close()


def begin_later(deleted_files: DeletedFiles) -> None:
    deleted_files.start_time = time.time_ns() + 3_600_000_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_bytes(CODE)
    return path


def mapping(path: Path, offset: int = 0) -> MmapEvent:
    found = path.stat()
    return MmapEvent(offset, 5, 2, 8, 1, found.st_ino, 0, str(path))


def test_unchanged_file_yields_no_code(deleted_files: DeletedFiles, file: Path) -> None:
    deleted_files.add_from_file(LOCATION, mapping(file))
    file.chmod(0o755)
    assert list(deleted_files.code_of_changed_files()) == []
    assert deleted_files.lost_paths == []


def test_deleted_file_yields_code_of_each_location(deleted_files: DeletedFiles, file: Path) -> None:
    deleted_files.add_from_file(LOCATION, mapping(file))
    deleted_files.add_from_file(
        other := MappingLocation(9, 9, 200, 0x50_0000, 0x1000), mapping(file, 0x1000)
    )
    file.unlink()
    assert list(deleted_files.code_of_changed_files()) == [
        (LOCATION, PAGES),
        (other, PAGES[0x1000:]),
    ]
    assert deleted_files.lost_paths == []


def test_replaced_file_yields_the_old_code(deleted_files: DeletedFiles, file: Path) -> None:
    deleted_files.add_from_file(LOCATION, mapping(file))
    new = file.with_name("new")
    new.write_bytes(b"other")
    os.utime(new, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    new.rename(file)
    assert list(deleted_files.code_of_changed_files()) == [(LOCATION, PAGES)]


def test_file_overwritten_in_place_yields_the_old_code(
    deleted_files: DeletedFiles, file: Path
) -> None:
    """No file has the code any more; the recording has it."""
    deleted_files.add_from_file(LOCATION, mapping(file))
    file.write_bytes(b"other bytes")
    assert list(deleted_files.code_of_changed_files()) == [(LOCATION, PAGES)]
    assert deleted_files.lost_paths == []


def test_file_changed_before_the_copy_is_lost(deleted_files: DeletedFiles, file: Path) -> None:
    deleted_files.start_time = file.stat().st_ctime_ns
    deleted_files.add_from_file(LOCATION, mapping(file))
    assert list(deleted_files.code_of_changed_files()) == []
    assert deleted_files.lost_paths == [str(file)]


def test_path_to_another_inode_is_lost(deleted_files: DeletedFiles, file: Path) -> None:
    other = mapping(file)._replace(inode=file.stat().st_ino + 1)
    deleted_files.add_from_file(LOCATION, other)
    assert list(deleted_files.code_of_changed_files()) == []
    assert deleted_files.lost_paths == [str(file)]


@pytest.mark.parametrize("there", [True, False], ids=["in the file", "elsewhere"])
def test_received_contents_are_yielded_if_the_file_differs(
    there: bool, deleted_files: DeletedFiles, file: Path
) -> None:
    """They go into the recording if our file does not show them; it is then no other's."""
    code = PAGES if there else PAGES[::-1]
    deleted_files.register_expected_contents(LOCATION, mapping(file), None)
    for start in range(0, len(code), 0x800):
        assert deleted_files.add_contents(
            LOCATION.pid, LOCATION.address + start, code[start : start + 0x800]
        )
    assert list(deleted_files.code_of_changed_files()) == ([] if there else [(LOCATION, code)])
    assert deleted_files.lost_paths == []
    identity = hashlib.sha1(code).digest()
    assert deleted_files.build_ids.by_path() == ({} if there else {str(file): identity})


def test_two_files_with_one_path_are_both_yielded(deleted_files: DeletedFiles, file: Path) -> None:
    """A reader cannot know which of the two files it finds."""
    locations = [LOCATION, MappingLocation(7, 8, 200, 0x40_0000, 0x2000)]
    for location, code in zip(locations, (PAGES[::-1], PAGES), strict=True):
        deleted_files.register_expected_contents(location, mapping(file), None)
        assert deleted_files.add_contents(7, location.address, code)
    assert list(deleted_files.code_of_changed_files()) == [
        (locations[0], PAGES[::-1]),
        (locations[1], PAGES),
    ]


def test_contents_of_a_mapping_without_file_are_not_added(
    deleted_files: DeletedFiles, file: Path
) -> None:
    """They are written as any code is."""
    memory = mapping(file)._replace(path="/memfd:jit (deleted)")
    deleted_files.register_expected_contents(LOCATION, memory, None)
    assert not deleted_files.add_contents(LOCATION.pid, LOCATION.address, PAGES)
    assert list(deleted_files.code_of_changed_files()) == []


def test_build_id_in_reads_the_note_in_the_first_page(tmp_path: Path) -> None:
    """An ELF header, one segment of notes, a note that is not the build id before it."""
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    notes = struct.pack("<III4s4s", 4, 4, 5, b"GNU", b"prop")
    notes += struct.pack("<III4s20s", 4, 20, 3, b"GNU", bytes(range(20)))
    segment = struct.pack("<IIQQQQQQ", 4, 4, 120, 120, 120, len(notes), len(notes), 4)
    head = header + segment + notes
    assert build_id_in(head.ljust(4096, b"\0")) == bytes(range(20))
    assert build_id_in(head[:-1]) is None
    assert build_id_in(b"#!/bin/sh\n") is None
    (tmp_path / "file").write_bytes(head)
    assert ElfFile(tmp_path / "file").build_id == bytes(range(20))


def test_file_with_new_times_and_equal_code_yields_no_code(
    deleted_files: DeletedFiles, file: Path
) -> None:
    """Only the time of modification or the rest of the file changed; the code is the same."""
    deleted_files.add_from_file(LOCATION, mapping(file))
    os.utime(file, ns=(1, 1))
    assert list(deleted_files.code_of_changed_files()) == []
    assert deleted_files.lost_paths == []


def test_mapping_larger_than_the_copy_limit_is_lost(
    deleted_files: DeletedFiles, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping may have any size; code that was not copied is reported as lost."""
    monkeypatch.setattr("rtit.capture.store.deleted_files._MAX_COPIED", 1 << 20)
    os.truncate(file, 1 << 40)
    deleted_files.add_from_file(MappingLocation(7, 8, 100, 0x40_0000, 1 << 40), mapping(file))
    os.utime(file, ns=(1, 1))
    assert list(deleted_files.code_of_changed_files()) == []
    assert deleted_files.lost_paths == [str(file)]


def test_change_outside_the_mapped_code_yields_no_code(
    deleted_files: DeletedFiles, file: Path
) -> None:
    deleted_files.add_from_file(MappingLocation(7, 8, 100, 0x40_0000, 0x1000), mapping(file))
    with file.open("r+b") as out:
        out.seek(0x1000)
        out.write(b"other")
    assert list(deleted_files.code_of_changed_files()) == []
    assert deleted_files.lost_paths == []


def test_touched_and_deleted_file_yields_code(deleted_files: DeletedFiles, file: Path) -> None:
    deleted_files.add_from_file(LOCATION, mapping(file))
    os.utime(file, ns=(1, 1))
    file.unlink()
    assert list(deleted_files.code_of_changed_files()) == [(LOCATION, PAGES)]
    assert deleted_files.lost_paths == []


def test_yielded_code_fits_into_max_bytes(deleted_files: DeletedFiles, file: Path) -> None:
    """Records have headers, for which there must be room, too."""
    deleted_files.add_from_file(LOCATION, mapping(file))
    deleted_files.add_from_file(
        other := MappingLocation(9, 9, 200, 0x50_0000, 0x200), mapping(file, 0x200)
    )
    file.unlink()
    assert list(deleted_files.code_of_changed_files(0x2000 + 256)) == [
        (LOCATION, PAGES),
        (other, CODE[0x200:0x280]),
    ]
    assert deleted_files.lost_paths == [str(file)]


def test_locations_beyond_the_limit_are_lost(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtit.capture.store.deleted_files._MAX_LOCATIONS", 3)
    deleted_files = DeletedFiles()
    begin_later(deleted_files)
    try:
        for pid in range(1, 6):
            deleted_files.add_from_file(
                MappingLocation(pid, pid, 100, 0x40_0000, 0x2000), mapping(file)
            )
        file.unlink()
        assert [location.pid for location, _ in deleted_files.code_of_changed_files()] == [1, 2, 3]
        assert deleted_files.lost_paths == [str(file)]
    finally:
        deleted_files.close()


def test_file_deleted_before_the_copy_yields_no_code(
    deleted_files: DeletedFiles, file: Path
) -> None:
    """The recording has the name of the file, and a reader reports it."""
    gone = mapping(file)
    file.unlink()
    deleted_files.add_from_file(LOCATION, gone)
    assert list(deleted_files.code_of_changed_files()) == []


def test_code_beyond_the_copy_limit_is_truncated_and_lost(
    deleted_files: DeletedFiles, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted_files.add_from_file(LOCATION, mapping(file))
    file.unlink()
    monkeypatch.setattr("rtit.capture.store.deleted_files._MAX_COPIED", 0x1000)
    assert list(deleted_files.code_of_changed_files()) == [(LOCATION, PAGES[: 0x1000 - 64])]
    assert deleted_files.lost_paths == [str(file)]


@pytest.mark.parametrize("known", [0x2000, 0x1000])
def test_text_poke_supplies_the_code_of_a_missing_file(known: int, file: Path) -> None:
    images = Images()
    images.mmap(100, 7, 8, LOCATION.address, LOCATION.size, 0, str(file) + " that is gone")
    assert len(images.problems) == 1
    images.text_poke(100, 7, LOCATION.address, PAGES[:known])
    images.text_poke(101, 7, LOCATION.address + known, PAGES[known:])  # another matter
    assert len(images.problems) == (known < LOCATION.size)
    assert images.image(8).read(LOCATION.address, 0x1000) == PAGES[:0x1000]
