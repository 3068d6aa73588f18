"""Recordings and their files are private to the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.capture.output_files import create_private_file


def test_dangling_link_is_not_followed(tmp_path: Path) -> None:
    """Also one that came after it was looked for."""
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    with pytest.raises(FileExistsError):
        create_private_file(link)
    assert not target.exists()
    target.write_bytes(b"before")
    create_private_file(link).close()
    assert target.read_bytes() == b""


def test_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    create_private_file(tmp_path / "new").close()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
