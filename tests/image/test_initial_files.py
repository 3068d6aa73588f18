"""Initial file systems, as `cpio` writes them."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.errors import ImageError
from rtit.image.kernel.initial_files import read_initial_files
from support.boot import archive_of_folder


def write_archive(folder: Path, contents: dict[str, bytes]) -> bytes:
    """Return an archive of these files, the first of which has another name, `link`."""
    folder.mkdir()
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "link").hardlink_to(folder / next(iter(contents)))
    (folder / "symbolic").symlink_to("link")
    return archive_of_folder(folder)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress])
def test_files_of_several_archives_are_read(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    first = write_archive(tmp_path / "first", {"bin/one": b"1" * 5, "bin/two": b"old"})
    second = write_archive(tmp_path / "second", {"usr/lib/three": bytes(4096), "bin/two": b"new"})
    initrd = tmp_path / "initrd"
    initrd.write_bytes(first + bytes(512) + compress(second) + bytes(8))
    found = {path: bytes(content) for path, content in read_initial_files(initrd).items()}
    assert found == {
        "/bin/one": b"11111",
        "/bin/two": b"new",
        "/usr/lib/three": bytes(4096),
        "/link": bytes(4096),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "not a cpio archive"),
        (gzip.compress(b"no archive", mtime=0), "not a cpio archive"),
        (gzip.compress(b"", mtime=0)[:10] + b"\xff" * 20, "cannot be decompressed"),
        (b"070701" + b"x" * 104, "a damaged header"),
        (b"070701" + b"0" * 48 + b"7fffffff" + b"0" * 48, "ends within a file"),
    ],
)
def test_other_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    initrd = tmp_path / "initrd"
    initrd.write_bytes(content)
    with pytest.raises(ImageError, match=message):
        read_initial_files(initrd)
