"""Packs of recordings with kernels, guests and JIT-compiled code have all files that were used."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernel import made, recording
from kernel.machine import BPF, Machine
from kernel.test_guests import GUEST, HOST, core
from kernel.test_guests import recorded as guests
from kernel.test_jit import DUMP, PID, write_jit_recording
from rtit.cli.main import main
from rtit.image.jit_files import DUMP_NAME as DUMPS
from rtit.image.kernel.kcore import Kcore
from rtit.trace import Trace
from rtit.trace.recording import packs

__all__ = ["guests"]

READERS = (
    ["instructions", "--fields", "tid,ip,sym,asm"],
    *(["info"], ["report"], ["instructions", "--fields", "tid,ip,sym,dso,insn"], ["branches"]),
    *(["blocks"], ["edges"], ["stat", "--per", "function"], ["events"]),
)


@pytest.fixture
def assert_pack_equals_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., None]:
    """Assert that a pack, made with these options, gives the results of the recording after its
    folder is removed.
    """

    def assert_pack_equals_recording(
        folder: Path, data: str, options: Sequence[str], code: int = 0, packed: int | None = None
    ) -> None:
        def decoded(file: str, options: Sequence[str]) -> list[tuple[int, str, str]]:
            found = []
            for verb in READERS:
                ended = main([verb[0], file, *verb[1:], *options])
                said = capfd.readouterr()
                found.append((ended, said.out.replace(file, "F"), said.err.replace(file, "F")))
            return found

        monkeypatch.chdir(folder)
        before = decoded(data, options)
        # 2: a field that is rejected
        assert {ended for ended, _, _ in before} <= {0, 2, code}
        pack, packed = str(tmp_path / "pack"), code if packed is None else packed
        assert main(["pack", data, "-o", pack, *options]) == packed
        assert main(["pack", pack, "-o", f"{pack}2"]) == packed
        assert Path(pack).read_bytes() == Path(f"{pack}2").read_bytes()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        shutil.rmtree(folder)
        capfd.readouterr()
        assert decoded(pack, []) == before

    return assert_pack_equals_recording


@pytest.fixture(scope="module")
def machine() -> Machine:
    machine = Machine()
    one, two = machine.threads
    machine.syscall()
    machine.syscall(two, calls="made_open")
    machine.flip_static_key(True)
    machine.syscall(one)
    machine.syscall(calls=BPF)
    return machine


@pytest.fixture
def folder(machine: Machine, tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    recording.write(machine, folder / "perf.data")
    shutil.copytree(folder / "perf.data" / "kcore_dir", folder / "copies")
    shutil.copy(made.kernel().path, folder / "vmlinux")
    (folder / "modules" / "kernel").mkdir(parents=True)
    shutil.copy(made.module(), folder / "modules" / "kernel" / "made.ko")
    return folder


KCORE = ["--kcore", "copies/kcore", "--kallsyms", "copies/kallsyms"]
LINKED = ["--vmlinux", "vmlinux", "--kernel-modules", "modules"]


def test_pack_has_perfs_kernel_copies(
    folder: Path, assert_pack_equals_recording: Callable[..., None]
) -> None:
    assert_pack_equals_recording(folder, "perf.data", [])


def test_pack_has_the_copy_of_memory(
    folder: Path, assert_pack_equals_recording: Callable[..., None]
) -> None:
    shutil.copy(folder / "perf.data" / "data", folder / "alone")
    assert_pack_equals_recording(folder, "alone", KCORE)


def test_pack_has_linked_kernel_files(
    folder: Path, assert_pack_equals_recording: Callable[..., None]
) -> None:
    """With and without symbols; the code of the BPF program is unknown then."""
    assert_pack_equals_recording(
        folder, "perf.data/data", [*LINKED, "--kallsyms", "copies/kallsyms"], 3, 0
    )


def test_pack_finds_the_kernel_by_its_recorded_path(
    folder: Path, assert_pack_equals_recording: Callable[..., None]
) -> None:
    assert_pack_equals_recording(folder, "perf.data/data", LINKED, 3, 0)


@pytest.mark.parametrize("wrong", ["kcore", "kallsyms", "vmlinux", "made.ko"])
def test_problems_of_files_are_in_the_pack(
    wrong: str, folder: Path, assert_pack_equals_recording: Callable[..., None]
) -> None:
    """The messages are the same, though the files are not in the pack."""
    (path,) = folder.glob(f"[!p]*/**/{wrong}") if wrong != "vmlinux" else [folder / wrong]
    path.write_bytes(b"nothing")
    options = KCORE if wrong == "kcore" else [*LINKED, *KCORE[2:]]
    assert_pack_equals_recording(folder, "perf.data/data", options, 3)


def test_pack_has_only_executed_pages(folder: Path, machine: Machine, tmp_path: Path) -> None:
    """The copy covers all of memory."""
    kcore = folder / "copies" / "kcore"
    secret = b"a secret"
    content = bytearray(kcore.read_bytes())
    at = len(content) - 2 * recording.PAGE + 100
    content[at : at + len(secret)] = secret
    kcore.write_bytes(content)
    words = ["pack", str(folder / "perf.data" / "data"), "-o", str(tmp_path / "pack")]
    assert main([*words, "--kcore", str(kcore)]) == 0
    with zipfile.ZipFile(tmp_path / "pack") as archive:
        cut = archive.read("kernel/kcore")
    assert secret not in cut
    (tmp_path / "cut").write_bytes(cut)
    part, whole = Kcore(str(tmp_path / "cut")), Kcore(str(kcore))
    for ip in {ip for _, ip in machine.ran if ip >> 63}:
        assert part.read_page(ip & -4096) == whole.read_page(ip & -4096)
    assert not part.has_byte_at(made.MODULE + recording.MODULE_SIZE - recording.PAGE + 1)


def test_files_given_by_option_take_precedence(folder: Path, tmp_path: Path) -> None:
    """Symbols come from the reader's files, code from the pack."""
    data, pack = str(folder / "perf.data" / "data"), str(tmp_path / "pack")
    assert main(["pack", data, "-o", pack, "--kcore", str(folder / "copies" / "kcore")]) == 0
    names = str(folder / "copies" / "kallsyms")
    from rtit.image import KernelFiles

    with Trace(pack) as without, Trace(pack, kernel=KernelFiles(kallsyms=names)) as trace:
        # symbols show where the kernel switches threads
        decoded = replace(without.streams[0].counts(), errors={})
        assert trace.streams[0].counts() == decoded
        assert trace.image_problems == []
        ip = made.MODULE + 1
        assert str(trace.symbols.lookup(100, 0, ip)) == "made_open+0x1"
        assert "made_open" not in str(without.symbols.lookup(100, 0, ip))


def test_pack_has_kernels_of_guests(
    guests: Path, tmp_path: Path, assert_pack_equals_recording: Callable[..., None]
) -> None:
    (tmp_path / "here").mkdir()
    for name, code in (("host", HOST), ("guest", GUEST)):
        (tmp_path / "here" / name).write_bytes(core(code))
    for name in ("perf.data", "names"):
        shutil.move(tmp_path / name, tmp_path / "here" / name)
    options = ["--kcore", "host", "--guest-kcore", "guest", "--guestkallsyms", "names"]
    assert_pack_equals_recording(tmp_path / "here", "perf.data", options)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("cut", [0, 5])
def test_pack_has_jit_compiled_code(
    named: bool, cut: int, tmp_path: Path, assert_pack_equals_recording: Callable[..., None]
) -> None:
    """Files beside the recording or given by option; a truncated file has the same message."""
    folder = tmp_path / "here"
    (folder / "there").mkdir(parents=True)
    write_jit_recording(folder)
    location = folder / "there" if named else folder
    (location / f"jit-{PID}.dump").write_bytes(DUMP[: len(DUMP) - cut])
    (location / f"perf-{PID}.map").write_text("7f0000001020 10 of the map\n")
    (location / "jit-1.dump").write_text("of another user")
    assert_pack_equals_recording(
        folder, "perf.data", ["--jit", "there"] if named else [], 3 if cut else 0
    )
    with zipfile.ZipFile(tmp_path / "pack") as archive:
        assert [name for name in archive.namelist() if DUMPS.search(name)] == [
            f"jit/0/jit-{PID}.dump"
        ]


def test_jit_files_beside_a_pack_are_ignored(tmp_path: Path) -> None:
    data, pack = write_jit_recording(tmp_path), tmp_path / "there" / "pack"
    pack.parent.mkdir()
    assert main(["pack", str(data), "-o", str(pack)]) == 0
    (pack.parent / f"jit-{PID}.dump").write_bytes(DUMP)
    for jit, count in ((None, 0), ([pack.parent], 3)):
        with Trace(pack, jit=jit) as trace:
            assert trace.streams[0].counts().instructions == count


@pytest.mark.parametrize(
    "member", ["kernel/../x", "kernel/modules/..", "/kernel/kcore", "jit/0/perf-1.map/x", "kcore"]
)
def test_invalid_kernel_members_are_rejected(
    member: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, pack = write_jit_recording(tmp_path), tmp_path / "pack"
    assert main(["pack", str(data), "-o", str(pack)]) == 0
    with zipfile.ZipFile(pack) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    said = json.loads(content[packs.MANIFEST])
    content[packs.MANIFEST] = json.dumps({**said, "more": {member: "x"}}).encode()
    with zipfile.ZipFile(pack, "w") as archive:
        for name, data_of in {**content, member: b"x"}.items():
            archive.writestr(name, data_of)
    capfd.readouterr()
    assert main(["report", str(pack)]) == 1
    assert "its list names" in capfd.readouterr().err
