"""QEMU is probed once; the cached result is used only if no other user can have written it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rtit.capture.qemu.installation import QemuInstallation, QemuSearch, cached_version, find_qemu


@dataclass
class ProbedInstallation:
    qemu: Path
    plugin: Path
    cache: Path
    asked: Path

    @property
    def file(self) -> Path:
        return self.cache / "rtit" / "qemu"

    def questions(self) -> int:
        """How often QEMU was run."""
        return len(self.asked.read_text().splitlines()) if self.asked.exists() else 0

    def search(self) -> None:
        """Find QEMU, of the version that the script prints."""
        found = QemuSearch().result()
        assert isinstance(found, QemuInstallation)
        assert (found.qemu, found.version, found.plugin) == (self.qemu, "9.1.2", self.plugin)


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProbedInstallation:
    made = ProbedInstallation(
        *(tmp_path / name for name in ("qemu", "plugin.so", "cache", "asked"))
    )
    made.qemu.write_text(
        f"#!/bin/sh\necho x >> {made.asked}\n"
        "[ $1 = --version ] && echo qemu-x86_64 version 9.1.2 || echo rtit record\n"
    )
    made.qemu.chmod(0o755)
    made.plugin.write_bytes(b"plugin")
    monkeypatch.setenv("RTIT_QEMU", str(made.qemu))
    monkeypatch.setenv("RTIT_QEMU_PLUGIN", str(made.plugin))
    monkeypatch.setenv("XDG_CACHE_HOME", str(made.cache))
    return made


def test_second_search_uses_the_cache(installation: ProbedInstallation) -> None:
    installation.search()
    assert installation.questions() == 2
    installation.search()
    assert installation.questions() == 2
    assert installation.file.stat().st_mode & 0o777 == 0o600
    assert sorted(installation.file.parent.iterdir()) == [installation.file]


def test_find_qemu_ignores_the_cache(installation: ProbedInstallation) -> None:
    installation.search()
    assert isinstance(find_qemu(), QemuInstallation)
    assert installation.questions() == 4


@pytest.mark.parametrize("which", ["qemu", "plugin"])
@pytest.mark.parametrize("what", ["size", "time"])
def test_changed_qemu_or_plugin_is_probed_again(
    installation: ProbedInstallation, which: str, what: str
) -> None:
    installation.search()
    path: Path = getattr(installation, which)
    if what == "size":
        before = path.stat()
        path.write_bytes(path.read_bytes() + b"\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(path, ns=(1, 1))
    installation.search()
    assert installation.questions() == 4
    installation.search()
    assert installation.questions() == 4


def test_unusable_qemu_is_not_cached(installation: ProbedInstallation) -> None:
    installation.qemu.write_text(
        f"#!/bin/sh\necho x >> {installation.asked}\necho qemu-x86_64 version 9.1.2\n"
    )
    for questions in (2, 4):
        assert isinstance(QemuSearch().result(), str)
        assert installation.questions() == questions
    assert not installation.file.exists()


def damage(change: Callable[[bytes], bytes]) -> Callable[[ProbedInstallation], None]:
    def spoil(installation: ProbedInstallation) -> None:
        installation.file.write_bytes(change(installation.file.read_bytes()))

    return spoil


def pipe(installation: ProbedInstallation) -> None:
    installation.file.unlink()
    os.mkfifo(installation.file, 0o600)


def link(installation: ProbedInstallation) -> None:
    installation.file.rename(installation.cache / "elsewhere")
    installation.file.symlink_to(installation.cache / "elsewhere")


def folder(installation: ProbedInstallation) -> None:
    installation.file.unlink()
    installation.file.mkdir()


@pytest.mark.parametrize(
    "spoil",
    [
        damage(lambda said: b""),
        damage(lambda said: said[:-1]),
        damage(lambda said: said + b"more\n"),
        damage(lambda said: said.replace(b"9.1.2", b"\x1b[2J")),
        damage(lambda said: said.replace(b"9.1.2", b"9." + b"1" * 50)),
        damage(lambda said: said.replace(b"9.1.2", b"\xff\xfe")),
        damage(lambda said: b"\0" * (1 << 20)),
        damage(lambda said: b"rtit qemu 0" + said[11:]),
        lambda installation: installation.file.chmod(0o620),
        lambda installation: installation.file.chmod(0o602),
        lambda installation: installation.file.parent.chmod(0o777),
        pipe,
        link,
        folder,
    ],
)
def test_damaged_or_untrusted_cache_is_ignored(
    installation: ProbedInstallation, spoil: Callable[[ProbedInstallation], None]
) -> None:
    installation.search()
    spoil(installation)
    installation.search()
    assert installation.questions() == 4


def test_cache_of_another_user_is_ignored(
    installation: ProbedInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.search()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert cached_version(installation.qemu, installation.plugin) is None


def test_search_works_without_a_writable_cache(
    installation: ProbedInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.cache.write_text("a file")
    installation.search()
    installation.search()
    assert installation.questions() == 4
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "")
    installation.search()
    assert installation.questions() == 6
    assert not Path("/.cache").exists()
