"""Corrupted or wrong kernel files: one message for each, and the rest is decoded."""

from __future__ import annotations

import gzip
import lzma
import os
import random
import shutil
import struct
import subprocess
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel import made, recording
from kernel.machine import Machine
from kernel.test_paths import COUNTED
from rtit._core import ElfFile
from rtit.cli.main import main
from rtit.errors import ImageError
from rtit.image import Files, KernelFiles
from rtit.image.kernel import kernel as kernel_module
from rtit.image.kernel import modules
from rtit.image.kernel.kallsyms import read_kallsyms
from rtit.image.kernel.kernel import Kernel
from rtit.image.kernel.modules import ModuleObject
from rtit.image.kernel.vmlinux import Vmlinux
from rtit.trace import Trace

FILES: dict[str, Callable[[str], KernelFiles]] = {
    "kcore": lambda path: KernelFiles(kcore=path),
    "kallsyms": lambda path: KernelFiles(kallsyms=path),
    "vmlinux": lambda path: KernelFiles(vmlinux=path),
}
ODD_KALLSYMS = {
    "one word": (b"ffffffff81000000\n", "line 1 is not an address, a type and a name"),
    "no number": (b"ffffffff81000000 T a\nxyz T b\n", "line 2 is not an address"),
    "too long": (b"1ffffffff81000000 T a\n", "line 1 is not an address"),
    "hidden": (b"0000000000000000 T _text\n0000000000000000 T b\n", "kptr_restrict"),
    "no text": (bytes(range(256)), "line 1 is not an address"),
}


@pytest.fixture(scope="module")
def machine() -> Machine:
    machine = Machine()
    machine.syscall(machine.threads[1], calls="made_open")
    return machine


@pytest.fixture(scope="module")
def recorded(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording.write(machine, tmp_path_factory.mktemp("made") / "perf.data")


def decode_and_list_problems(recorded: Path, files: KernelFiles) -> list[str]:
    """Return the reported messages; assert that user code is decoded with any files."""
    with Trace(recorded / "data", kernel=files) as trace:
        (stream,) = trace.streams
        ips = [int(ip) for part in stream.instructions() for ip in part.ip]
        assert made.USER_AT in ips
        return [str(each) for each in trace.image_problems]


@pytest.mark.parametrize("kind", ODD_KALLSYMS)
def test_invalid_kallsyms_raises(kind: str, tmp_path: Path) -> None:
    content, message = ODD_KALLSYMS[kind]
    path = tmp_path / "kallsyms"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=message):
        read_kallsyms(path)


def test_copy_of_kallsyms_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kallsyms"
    path.write_bytes(b"ffff8 t b [m]\n\n00000001 A c\nffff8 W a\n")
    assert [tuple(each) for each in read_kallsyms(path)] == [
        (1, False, "c", ""),
        (0xFFFF8, True, "b", "m"),
        (0xFFFF8, True, "a", ""),
    ]


@pytest.mark.parametrize("option", FILES)
def test_kernel_file_must_be_regular(
    option: str, recorded: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path, tmp_path / "none"):
        messages = decode_and_list_problems(recorded, FILES[option](str(path)))
        assert any(str(path) in each for each in messages)
    assert main(["report", str(recorded / "data"), f"--{option}", str(pipe)]) == 3
    assert "not a regular file" in "".join(capfd.readouterr())


def test_pipe_in_kcore_directory_is_ignored(machine: Machine, tmp_path: Path) -> None:
    data = recording.write(machine, tmp_path / "perf.data")
    for name in ("kcore", "kallsyms"):
        (data / "kcore_dir" / name).unlink()
        os.mkfifo(data / "kcore_dir" / name)
    with Trace(data) as trace:
        assert len(trace.image_problems) == 2


def test_kcore_of_other_boot_is_refused(recorded: Path, machine: Machine, tmp_path: Path) -> None:
    other = tmp_path / "kcore"
    content = recording.kcore(machine)
    text = struct.pack("<Q", machine.at["_text"])
    other.write_bytes(content.replace(text, struct.pack("<Q", machine.at["_text"] + 0x20_0000)))
    messages = decode_and_list_problems(recorded, KernelFiles(kcore=str(other)))
    assert any("it is from another boot" in each for each in messages)


def test_vmlinux_without_code_is_reported(recorded: Path) -> None:
    """An ELF file that is not a kernel."""
    messages = decode_and_list_problems(recorded, KernelFiles(vmlinux=str(made.module())))
    assert any("it has no code" in each for each in messages)


def test_truncated_vmlinux_table_is_read(tmp_path: Path) -> None:
    """The last page of a segment may be cut by the end of the file, within a number."""
    sections = {".text": made.LINKED, ".data": made.LINKED + 0x10_0000}
    built = made._linked("cut", COUNTED, sections, {})
    content = bytearray(built.path.read_bytes())
    (table,) = struct.unpack_from("<Q", content, 32)
    at = table + next(
        number * 56
        for number in range(struct.unpack_from("<H", content, 56)[0])
        if struct.unpack_from("<Q", content, table + number * 56 + 16)[0] == sections[".data"]
    )
    # a separate page after the end, of which three bytes exist
    offset = len(content) + -len(content) % 4096
    struct.pack_into("<Q", content, at + 8, offset)
    cut = tmp_path / "vmlinux"
    cut.write_bytes(content.ljust(offset + 3, b"\0"))
    assert Vmlinux(str(cut), Files()).static_keys == 3


@pytest.mark.parametrize("other", [False, True])
def test_vmlinux_with_other_build_id_is_refused(other: bool) -> None:
    """It is used only with the recorded build id."""
    path = made.kernel().path
    build_id = ElfFile(path).build_id
    assert build_id is not None
    recorded = build_id[::-1] if other else build_id
    start = made.LINKED + made.MOVED
    kernel = Kernel(
        KernelFiles(vmlinux=str(path)), Files(build_ids={"[kernel.kallsyms]": recorded})
    )
    kernel.mmap(0, start, recording.KERNEL_SIZE, start, "[kernel.kallsyms]_text", None)
    image = kernel.build_image()
    assert bool(image.read(start, 1)) is not other
    messages = [each.message for each in kernel.problems if each.kind == "changed"]
    wanted = f"{path} has build id {build_id.hex()}, recorded was {recorded.hex()}"
    assert messages == ([wanted] if other else [])


def test_truncated_kcore_is_safe(recorded: Path, machine: Machine, tmp_path: Path) -> None:
    """Sizes in it are not trusted: missing bytes are unknown code."""
    content = recording.kcore(machine)
    for size in (0, 10, 63, 64, 100, 0x1000, 0x1800, len(content) - 1):
        path = tmp_path / f"kcore{size}"
        path.write_bytes(content[:size])
        decode_and_list_problems(recorded, KernelFiles(kcore=str(path)))


def test_corrupted_kcore_is_safe(recorded: Path, machine: Machine, tmp_path: Path) -> None:
    content = recording.kcore(machine)
    path = tmp_path / "kcore"
    rng = random.Random(6)
    for offset in range(64 + 2 * 56):
        changed = bytearray(content)
        changed[offset] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        path.write_bytes(changed)
        decode_and_list_problems(recorded, KernelFiles(kcore=str(path)))


def test_only_needed_kcore_pages_are_read(recorded: Path, machine: Machine, tmp_path: Path) -> None:
    """Of a file that claims all memory, only the needed pages are read."""
    path = tmp_path / "kcore"
    content = bytearray(recording.kcore(machine))
    struct.pack_into("<QQ", content, 64 + 32, 1 << 46, 1 << 46)
    with path.open("wb") as file:
        file.write(content)
        file.truncate(10 << 30)
    assert decode_and_list_problems(recorded, KernelFiles(kcore=str(path))) == []


def packed_modules() -> list[tuple[str, bytes]]:
    content = made.module().read_bytes()
    packed = [(".gz", gzip.compress(content)), (".xz", lzma.compress(content))]
    zstd = shutil.which("zstd")
    if zstd is not None:
        command = [zstd, "-c"]
        made_by = subprocess.run(command, input=content, capture_output=True, check=True)
        packed.append((".zst", made_by.stdout))
    return packed


def test_undecompressable_module_is_reported(recorded: Path, tmp_path: Path) -> None:
    """The message names the file, for any error of decompression."""
    for suffix, packed in packed_modules():
        for offset, end in ((0, None), (20, None), (40, None), (len(packed) - 6, None), (0, 30)):
            path = tmp_path / f"made.ko{suffix}"
            changed = bytearray(packed)
            if end is None:
                changed[offset] ^= 0xFF
            path.write_bytes(changed[:end])
            messages = decode_and_list_problems(recorded, KernelFiles(modules=str(tmp_path)))
            assert any(str(path) in each for each in messages), (suffix, offset, end)
            path.unlink()


def test_compressed_modules_are_read(recorded: Path, tmp_path: Path) -> None:
    for suffix, packed in packed_modules():
        path = tmp_path / f"made.ko{suffix}"
        path.write_bytes(packed)
        messages = decode_and_list_problems(recorded, KernelFiles(modules=str(tmp_path)))
        assert not any("made.ko" in each for each in messages)
        path.unlink()


def test_module_with_overlapping_sections_raises(recorded: Path) -> None:
    """System V ABI, chapter 4: no byte of a file is in more than one section."""
    content = bytearray(made.module().read_bytes())
    (table,) = struct.unpack_from("<Q", content, 40)
    (count,) = struct.unpack_from("<H", content, 60)
    for number in range(1, count):
        struct.pack_into("<QQ", content, table + 64 * number + 24, 0, len(content))
    with pytest.raises(ImageError, match="overlap"):
        ModuleObject(bytes(content), "made.ko")


def test_repeated_kernel_code_is_bounded(recorded: Path) -> None:
    """Many records may put much code at the same address."""
    files = Files()
    kcore = recorded / "kcore_dir" / "kcore"
    kernel = Kernel(KernelFiles(kcore=str(kcore), early=True), files)
    for time in range(1, 1 << 12):
        kernel.changes.ksymbol(time, made.MODULE, 0x3000_0000 - time, "all", 0)
    image = kernel.build_image()
    assert image.read(made.MODULE, 1) == b""
    assert kernel.problems == []


def test_repeated_module_loads_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many records may name the same file; the limit of loads of one file applies."""
    read, whole = [], modules._read_module

    def counted(path: str) -> bytes:
        read.append(path)
        return whole(path)

    monkeypatch.setattr(modules, "_read_module", counted)
    kernel = Kernel(KernelFiles(modules=str(made.module().parent)), Files())
    for time in range(1, 1000):
        kernel.mmap(time, made.MODULE, 0x3000, 0, "/lib/made.ko", None)
    kernel.build_image()
    assert 0 < len(read) < 20
    assert any("more often" in str(problem) for problem in kernel.problems)


@pytest.mark.parametrize("path", ["[kernel.kallsyms]_text", "/lib/made.ko"])
def test_symbols_of_repeated_mappings_are_limited(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mapping is searched for its symbols."""
    monkeypatch.setattr(kernel_module, "_MAX_SYMBOLS", 1000)
    names = tmp_path / "kallsyms"
    rows = [f"{made.MODULE + at:x} t name{at}" for at in range(100)]
    names.write_text("".join(f"{row}\t[made]\n" if "made" in path else f"{row}\n" for row in rows))
    searched: list[int] = []

    def count_symbol(addresses: list[int], address: int) -> int:
        searched.append(address)
        return bisect_right(addresses, address)

    monkeypatch.setattr(kernel_module, "bisect_right", count_symbol)
    kernel = Kernel(KernelFiles(kallsyms=str(names)), Files())
    for time in range(1, 100):
        kernel.mmap(time, made.MODULE, 0x3000, 0, path, None)
    kernel.build_image()
    assert len(searched) == 1000
    assert any("more often" in str(problem) for problem in kernel.problems)


def test_module_with_two_mappings_has_functions_of_both(tmp_path: Path) -> None:
    """A module can have two mappings, as in recordings of whole systems: code and init code."""
    initial = made.MODULE + 0x1_0000
    names = tmp_path / "kallsyms"
    names.write_text(f"{made.MODULE:x} t work\t[made]\n{initial:x} t start\t[made]\n")
    files = Files()
    kernel = Kernel(KernelFiles(kallsyms=str(names)), files)
    for address in (made.MODULE, initial):
        kernel.mmap(1, address, 0x1000, address, "[made]", None)
        kernel.changes.text_poke(0, address, b"", b"\xc3")
    kernel.build_image()
    assert kernel.problems == []
    symbols = files.symbols("[made]")
    assert symbols is not None
    found = [(each.name, each.offset) for each in symbols.functions]
    assert found == [("work", made.MODULE), ("start", initial)]


def test_corrupted_module_gives_result_or_error(recorded: Path, machine: Machine) -> None:
    content = made.module().read_bytes()
    symbols = read_kallsyms(recorded / "kcore_dir" / "kallsyms")
    own = [row for row in symbols if row.module == "made"]
    known = {row.name: row.address for row in symbols}
    rng = random.Random(7)
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        data = bytes(changed[: rng.randrange(len(changed)) if rng.random() < 0.2 else None])
        try:
            pieces = ModuleObject(data, "made.ko").link_code(made.MODULE, own, known)
        except ImageError:
            continue
        assert sum(len(code) for _, code in pieces) <= 8 * len(content)


def test_kallsyms_of_other_boot_loses_only_names(
    recorded: Path, machine: Machine, tmp_path: Path
) -> None:
    """Only names are lost, not the path."""
    path = tmp_path / "kallsyms"
    path.write_text("ffffffff81000000 T _text\nffffffff81000010 T other\n")
    kcore = recorded / "kcore_dir" / "kcore"
    assert (
        decode_and_list_problems(recorded, KernelFiles(kcore=str(kcore), kallsyms=str(path))) == []
    )
