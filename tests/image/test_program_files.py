"""The archive of program files beside the recording of a system."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from rtit.errors import ImageError
from rtit.image.program_files import ProgramFiles, write_program_files


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = str(tmp_path / "programs.zip")
    contents = {("/bin/a", ""): b"without build id", ("/bin/a", "0f" * 20): b"with build id"}
    write_program_files(path, {key: memoryview(each) for key, each in contents.items()})
    found = ProgramFiles(path).files
    assert {key: Path(each.file or "").read_bytes() for key, each in found.items()} == contents
    assert {each.name for each in found.values()} == {"/bin/a"}


def test_member_that_is_no_program_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "programs.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(ImageError, match="a file named 'other'"):
        ProgramFiles(str(path))
    path.write_bytes(b"no archive")
    with pytest.raises(ImageError, match=r"programs\.zip"):
        ProgramFiles(str(path))
