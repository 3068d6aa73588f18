"""Files of virtual machines: untrusted paths and links do not leave the guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.image import UnusableFile, guest_path
from rtit.image.mapped_files import Files


@pytest.mark.parametrize("path", ["/../outside", "/usr/../../outside", "/link", "/usr/linked"])
def test_guest_paths_cannot_leave_guest(path: str, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"\x90" * 8)
    mount = tmp_path / "mount"
    (mount / "usr").mkdir(parents=True)
    (mount / "usr" / "inside").write_bytes(b"\xc3" * 8)
    (mount / "link").symlink_to(tmp_path / "outside")
    (mount / "usr" / "linked").symlink_to("../../outside")
    files = Files(path_map={guest_path(5, ""): str(mount)})
    assert bytes(files.read_code(guest_path(5, "/usr/inside"), 0, 8)) == b"\xc3" * 8
    with pytest.raises(UnusableFile, match="lead out of the guest"):
        files.read_code(guest_path(5, path), 0, 8)


@pytest.mark.parametrize("end", ["", "/"])
def test_user_links_are_followed(end: str, tmp_path: Path) -> None:
    """To the folder, above it, and to a file that is named itself."""
    (tmp_path / "disk" / "mount").mkdir(parents=True)
    (tmp_path / "disk" / "mount" / "inside").write_bytes(b"\xc3" * 8)
    (tmp_path / "disk" / "mount" / "linked").symlink_to("inside")
    (tmp_path / "way").symlink_to("disk")
    (tmp_path / "short").symlink_to(tmp_path / "way" / "mount")
    for folder in ("way/mount", "short"):
        files = Files(
            path_map={
                guest_path(5, ""): f"{tmp_path / folder}{end}",
                guest_path(5, "/named"): str(tmp_path / folder / "linked"),
            }
        )
        for path in ("/inside", "/named"):
            assert bytes(files.read_code(guest_path(5, path), 0, 8)) == b"\xc3" * 8
        with pytest.raises(UnusableFile, match="lead out of the guest"):
            files.read_code(guest_path(5, "/linked"), 0, 8)


def test_guest_path_with_double_slash_works(tmp_path: Path) -> None:
    """One slash at the beginning of a path, or two."""
    (tmp_path / "inside").write_bytes(b"\xc3" * 8)
    (tmp_path / "linked").symlink_to("inside")
    folder = tmp_path.resolve()
    files = Files(path_map={guest_path(5, ""): "/"})
    assert bytes(files.read_code(guest_path(5, f"{folder}/inside"), 0, 8)) == b"\xc3" * 8
    with pytest.raises(UnusableFile, match="lead out of the guest"):
        files.read_code(guest_path(5, f"{folder}/linked"), 0, 8)
