"""Files that are gone before the recording ends: their code is kept, or they are named."""

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
from rtit.capture.store.build_ids import build_id_in
from rtit.capture.store.deleted_files import DeletedFiles, MappedAt
from rtit.image import Images

CODE = bytes(range(256)) * 20
PAGES = CODE.ljust(0x2000, b"\0")
PLACE = MappedAt(7, 8, 100, 0x40_0000, 0x2000)


@pytest.fixture
def vanished() -> Iterator[DeletedFiles]:
    """Of a recording that begins when the files have been made."""
    made = DeletedFiles()
    begin_later(made)
    yield made
    made.close()


def begin_later(vanished: DeletedFiles) -> None:
    vanished._began = time.time_ns() + 3_600_000_000_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_bytes(CODE)
    return path


def mapping(path: Path, offset: int = 0) -> MmapEvent:
    found = path.stat()
    return MmapEvent(offset, 5, 2, 8, 1, found.st_ino, 0, str(path))


def test_what_stays_is_not_kept(vanished: DeletedFiles, file: Path) -> None:
    vanished.saw(PLACE, mapping(file))
    file.chmod(0o755)
    assert list(vanished.pokes()) == []
    assert vanished.lost == []


def test_deleted(vanished: DeletedFiles, file: Path) -> None:
    vanished.saw(PLACE, mapping(file))
    vanished.saw(other := MappedAt(9, 9, 200, 0x50_0000, 0x1000), mapping(file, 0x1000))
    file.unlink()
    assert list(vanished.pokes()) == [(PLACE, PAGES), (other, PAGES[0x1000:])]
    assert vanished.lost == []


def test_another_file_has_its_name(vanished: DeletedFiles, file: Path) -> None:
    vanished.saw(PLACE, mapping(file))
    new = file.with_name("new")
    new.write_bytes(b"other")
    os.utime(new, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    new.rename(file)
    assert list(vanished.pokes()) == [(PLACE, PAGES)]


def test_written_to_in_place(vanished: DeletedFiles, file: Path) -> None:
    """No file has what it was any more: the recording has."""
    vanished.saw(PLACE, mapping(file))
    file.write_bytes(b"other bytes")
    assert list(vanished.pokes()) == [(PLACE, PAGES)]
    assert vanished.lost == []


def test_changed_before_it_could_be_copied(vanished: DeletedFiles, file: Path) -> None:
    vanished._began = file.stat().st_ctime_ns
    vanished.saw(PLACE, mapping(file))
    assert list(vanished.pokes()) == []
    assert vanished.lost == [str(file)]


def test_another_file_of_the_path_than_the_programs(vanished: DeletedFiles, file: Path) -> None:
    other = mapping(file)._replace(inode=file.stat().st_ino + 1)
    vanished.saw(PLACE, other)
    assert list(vanished.pokes()) == []
    assert vanished.lost == [str(file)]


@pytest.mark.parametrize("there", [True, False], ids=["in the file", "elsewhere"])
def test_contents_that_were_sent(there: bool, vanished: DeletedFiles, file: Path) -> None:
    """They go into the recording if our file does not show them; it is then no other's."""
    code = PAGES if there else PAGES[::-1]
    vanished.sent(PLACE, mapping(file), None)
    for start in range(0, len(code), 0x800):
        assert vanished.take(PLACE.pid, PLACE.address + start, code[start : start + 0x800])
    assert list(vanished.pokes()) == ([] if there else [(PLACE, code)])
    assert vanished.lost == []
    identity = hashlib.sha1(code).digest()
    assert vanished.build_ids.known() == ({} if there else {str(file): identity})


def test_of_two_files_of_one_path_both_are_kept(vanished: DeletedFiles, file: Path) -> None:
    """Which of them a reader finds it cannot know."""
    places = [PLACE, MappedAt(7, 8, 200, 0x40_0000, 0x2000)]
    for place, code in zip(places, (PAGES[::-1], PAGES), strict=True):
        vanished.sent(place, mapping(file), None)
        assert vanished.take(7, place.address, code)
    assert list(vanished.pokes()) == [(places[0], PAGES[::-1]), (places[1], PAGES)]


def test_contents_without_a_mapping_are_ignored(vanished: DeletedFiles, file: Path) -> None:
    """They are written as any code is."""
    memory = mapping(file)._replace(path="/memfd:jit (deleted)")
    vanished.sent(PLACE, memory, None)
    assert not vanished.take(PLACE.pid, PLACE.address, PAGES)
    assert list(vanished.pokes()) == []


def test_build_id_in_the_first_page(tmp_path: Path) -> None:
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


def test_only_touched(vanished: DeletedFiles, file: Path) -> None:
    """Its time is another, its code is what it was; so it is where only the rest was written to."""
    vanished.saw(PLACE, mapping(file))
    os.utime(file, ns=(1, 1))
    assert list(vanished.pokes()) == []
    assert vanished.lost == []


def test_more_than_is_copied(
    vanished: DeletedFiles, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping may have any size; code that was not copied is reported as lost."""
    monkeypatch.setattr("rtit.capture.store.deleted_files._MAX_COPIED", 1 << 20)
    os.truncate(file, 1 << 40)
    vanished.saw(MappedAt(7, 8, 100, 0x40_0000, 1 << 40), mapping(file))
    os.utime(file, ns=(1, 1))
    assert list(vanished.pokes()) == []
    assert vanished.lost == [str(file)]


def test_written_to_beside_the_code(vanished: DeletedFiles, file: Path) -> None:
    vanished.saw(MappedAt(7, 8, 100, 0x40_0000, 0x1000), mapping(file))
    with file.open("r+b") as out:
        out.seek(0x1000)
        out.write(b"other")
    assert list(vanished.pokes()) == []
    assert vanished.lost == []


def test_touched_and_deleted(vanished: DeletedFiles, file: Path) -> None:
    vanished.saw(PLACE, mapping(file))
    os.utime(file, ns=(1, 1))
    file.unlink()
    assert list(vanished.pokes()) == [(PLACE, PAGES)]
    assert vanished.lost == []


def test_no_more_than_there_is_room_for(vanished: DeletedFiles, file: Path) -> None:
    """Records have headers, for which there must be room, too."""
    vanished.saw(PLACE, mapping(file))
    vanished.saw(other := MappedAt(9, 9, 200, 0x50_0000, 0x200), mapping(file, 0x200))
    file.unlink()
    assert list(vanished.pokes(0x2000 + 256)) == [(PLACE, PAGES), (other, CODE[0x200:0x280])]
    assert vanished.lost == [str(file)]


def test_places_beyond_a_number_are_not_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtit.capture.store.deleted_files._MAX_PLACES", 3)
    vanished = DeletedFiles()
    begin_later(vanished)
    try:
        for pid in range(1, 6):
            vanished.saw(MappedAt(pid, pid, 100, 0x40_0000, 0x2000), mapping(file))
        file.unlink()
        assert [place.pid for place, _ in vanished.pokes()] == [1, 2, 3]
        assert vanished.lost == [str(file)]
    finally:
        vanished.close()


def test_gone_before_it_was_looked_at(vanished: DeletedFiles, file: Path) -> None:
    """The recording has its name, and who reads it is told."""
    gone = mapping(file)
    file.unlink()
    vanished.saw(PLACE, gone)
    assert list(vanished.pokes()) == []


def test_no_more_bytes(vanished: DeletedFiles, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vanished.saw(PLACE, mapping(file))
    file.unlink()
    monkeypatch.setattr("rtit.capture.store.deleted_files._MAX_COPIED", 0x1000)
    assert list(vanished.pokes()) == [(PLACE, PAGES[: 0x1000 - 64])]
    assert vanished.lost == [str(file)]


@pytest.mark.parametrize("known", [0x2000, 0x1000])
def test_a_reader_misses_nothing_then(known: int, file: Path) -> None:
    images = Images()
    images.mmap(100, 7, 8, PLACE.address, PLACE.size, 0, str(file) + " that is gone")
    assert len(images.problems) == 1
    images.text_poke(100, 7, PLACE.address, PAGES[:known])
    images.text_poke(101, 7, PLACE.address + known, PAGES[known:])  # another matter
    assert len(images.problems) == (known < PLACE.size)
    assert images.image(8).read(PLACE.address, 0x1000) == PAGES[:0x1000]
