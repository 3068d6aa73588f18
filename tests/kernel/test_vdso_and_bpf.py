"""Kernel code outside of a copy of memory: the vDSO, and BPF programs."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest

from kernel import made, recording
from kernel.machine import BPF, BPF_CODE, Machine
from kernel.writer import KernelWriter
from rtit.errors import PerfDataError
from rtit.image import Files, Images, KernelFiles, MemoryBudget, PackedFile
from rtit.image.kernel.kernel import Kernel
from rtit.image.mapped_files import VDSO, CurrentVdso
from rtit.perfdata.features import Feature
from rtit.perfdata.records import Cursor, bpf_code
from rtit.trace import Trace

AT = 0x7FFC_0000_0000


def current_vdso() -> tuple[bytes, bytes]:
    """Return the vDSO of this process, and its build id."""
    from rtit._core import ElfFile

    found = CurrentVdso()
    path = found._path
    if path is None:
        pytest.skip("this process has no vdso")
    build_id = ElfFile(path).build_id
    assert build_id is not None
    return Path(path).read_bytes(), build_id


def read_vdso(images: Images, size: int, build_id: bytes | None) -> bytes:
    images.mmap(1, 5, 5, AT, size, 0, VDSO, build_id=build_id)
    return images.image(5).read(AT, size)


def test_current_vdso_is_used_if_build_id_matches() -> None:
    content, build_id = current_vdso()
    assert read_vdso(Images(), len(content), build_id) == content
    assert read_vdso(Images(build_ids={VDSO: build_id}), len(content), None) == content
    assert read_vdso(Images(), len(content), bytes(20)) == b""
    assert read_vdso(Images(), len(content), b"\x01" * 20) == b""
    images = Images()
    read_vdso(images, len(content), build_id)
    from rtit.image import Symbols

    functions = images.files.symbols(VDSO, build_id)
    assert functions is not None
    (gettime,) = functions.find_by_name("__vdso_clock_gettime")
    name = Symbols(images).lookup(5, 2, AT + gettime.offset)
    assert (name.offset, name.module) == (0, VDSO)


def test_vdso_is_read_from_a_file_of_path_map_or_build_id_cache(tmp_path: Path) -> None:
    content, build_id = current_vdso()
    file = tmp_path / "file"
    file.write_bytes(content)
    assert read_vdso(Images(path_map={VDSO: str(file)}), len(content), None) == content
    name = build_id.hex()
    kept = tmp_path / ".build-id" / name[:2] / name[2:] / "vdso"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(content)
    images = Images(build_id_cache=tmp_path)
    assert read_vdso(images, len(content), build_id) == content


def test_vdso_is_read_from_a_pack() -> None:
    """A vDSO of another machine, with another build id."""
    from rtit._core import ElfFile

    path = made.user("one").path
    build_id = ElfFile(path).build_id
    assert build_id is not None
    kept = {(VDSO, build_id.hex()): PackedFile(VDSO, str(path))}
    content = path.read_bytes()[:0x1000]
    assert read_vdso(Images(packed=kept), len(content), build_id) == content


def test_kernel_symbols_with_the_same_name_are_all_kept() -> None:
    """Trampolines, or a BPF program that is loaded twice."""
    files = Files()
    kernel = Kernel(KernelFiles(), files)
    for time, at in ((5, BPF), (6, BPF + 0x4000)):
        kernel.changes.ksymbol(time, at, len(BPF_CODE), recording.BPF_NAME, 0)
    kernel.build_image()
    found = files.symbols(f"[{recording.BPF_NAME}]")
    assert found is not None
    for at in (BPF, BPF + 0x4000):
        function = found.find_function(at + 1)
        assert function is not None
        assert (function.name, function.offset) == (recording.BPF_NAME, at)
    assert found.find_function(BPF + 0x1000) is None


@pytest.mark.parametrize("what", ["map", "poke", "symbol", "code"])
def test_kernel_beyond_memory_limit_has_no_code(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its code is unknown, not the code before a change."""
    budget = MemoryBudget()
    left = [1]

    def reserve(size: int) -> bool:
        left[0] -= 1
        return left[0] >= 0

    monkeypatch.setattr(budget, "reserve_memory", reserve)
    kernel = Kernel(KernelFiles(), Files(), budget)
    kernel.changes.text_poke(5, BPF, b"\x90", b"\xc3")
    match what:
        case "map":
            kernel.mmap(6, BPF, 0x1000, 0, "[kernel.kallsyms]_text", None)
        case "poke":
            kernel.changes.text_poke(6, BPF + 1, b"\x90", b"\xc3")
        case "symbol":
            kernel.changes.ksymbol(6, BPF + 1, 1, "name", 0)
        case _:
            kernel.changes.add_code(BPF + 1, b"\xc3")
    image = kernel.build_image()
    assert image.read(BPF, 1, time=5) == b""
    assert list(image.mappings) == []
    assert [problem.path for problem in kernel.problems] == ["kernel"]


SECOND_BPF = BPF + 0x100
FIRST, SECOND = b"\x90\xc3", b"\x66\x90\xc3"


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("from_the_start", [True, False])
def test_removed_or_replaced_kernel_code_is_known_only_from_a_matching_copy(
    early: bool, from_the_start: bool, tmp_path: Path
) -> None:
    """A copy from before the recording has the first code, one from after it the last code. Other
    code is unknown, and so is removed code.
    """

    class Memory:
        at = {recording.REF: BPF & -0x1000}  # noqa: RUF012
        booted = {SECOND_BPF: FIRST if early and from_the_start else SECOND}  # noqa: RUF012

    kcore = tmp_path / "kcore"
    kcore.write_bytes(recording.kcore(Memory()))  # type: ignore[arg-type]
    kernel = Kernel(KernelFiles(kcore=str(kcore), early=early), Files())
    first = 0 if from_the_start else 10
    kernel.changes.ksymbol(first, SECOND_BPF, len(FIRST), "first", 0)
    kernel.changes.ksymbol(20, SECOND_BPF, len(FIRST), "first", 1)
    kernel.changes.ksymbol(30, SECOND_BPF, len(SECOND), "second", 0)
    image = kernel.build_image()
    has_first = early and from_the_start
    assert image.read(SECOND_BPF, len(FIRST), time=15) == (FIRST if has_first else b"")
    assert image.read(SECOND_BPF, len(FIRST), time=25) == b""
    assert image.read(SECOND_BPF, len(SECOND), time=35) == (b"" if early else SECOND)
    names = [(each.path, each.since, each.until) for each in image.mappings]
    assert ("[first]", first if from_the_start else 0, 20) in names
    assert any(path == "[second]" and since == 30 for path, since, _ in names)


@pytest.mark.parametrize("names", [["one"], ["one", "one"], ["one", "two"]])
def test_bpf_code_is_used_only_if_unambiguous(names: list[str]) -> None:
    """A recording has code by address: with two programs there, it may belong to either."""
    kernel = Kernel(KernelFiles(), Files())
    kernel.changes.add_code(SECOND_BPF, SECOND)
    for time, name in enumerate(names, 5):
        kernel.changes.ksymbol(time, SECOND_BPF, len(SECOND), name, 0)
    read = kernel.build_image().read(SECOND_BPF, len(SECOND), time=20)
    assert read == (b"" if len(set(names)) > 1 else SECOND)


def program(address: int, code: bytes) -> bytes:
    """A `struct perf_bpil` of a program of one function, as perf writes it (tools/perf/util/
    bpf-utils.h, and struct bpf_prog_info of include/uapi/linux/bpf.h).
    """
    padded = code.ljust(8, b"\0")
    info = bytearray(232)
    struct.pack_into("<I", info, 16, len(code))
    struct.pack_into("<Q", info, 24, 0)
    struct.pack_into("<IIQQ", info, 104, 1, 1, len(padded), len(padded) + 8)
    data = padded + struct.pack("<QI4x", address, len(code))
    return struct.pack("<IIQ", len(info), len(data), 0b11001) + bytes(info) + data


SECTION = struct.pack("<I", 1) + program(BPF, BPF_CODE)


def read_bpf_functions(section: bytes) -> list[tuple[int, bytes]]:
    return list(bpf_code(Cursor(memoryview(section), 0, "file", "HEADER_BPF_PROG_INFO")))


def test_code_of_each_bpf_function_in_the_file_is_read() -> None:
    assert read_bpf_functions(SECTION) == [(BPF, BPF_CODE)]
    two = struct.pack("<I", 2) + program(BPF, BPF_CODE) + program(BPF + 64, b"\xc3")
    assert read_bpf_functions(two) == [(BPF, BPF_CODE), (BPF + 64, b"\xc3")]


def test_bpf_functions_are_yielded_one_by_one() -> None:
    """A section of a megabyte may name a function for each of its words."""
    data = bytes(8) + struct.pack("<Q", 1) * (1 << 17)
    info = bytearray(232)
    struct.pack_into("<I", info, 16, len(data))
    struct.pack_into("<IIQQ", info, 104, 1 << 17, 1 << 17, 8, 8)
    head = struct.pack("<IIIQ", 1, len(info), len(data), 0b11001)
    section = head + bytes(info) + data
    tracemalloc.start()
    try:
        cursor = Cursor(memoryview(section), 0, "file", "HEADER_BPF_PROG_INFO")
        count = sum(1 for _ in bpf_code(cursor))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 1 << 17
    assert most < 3 * len(data)


def test_truncated_bpf_programs_raise() -> None:
    for size in range(len(SECTION)):
        with pytest.raises(PerfDataError, match="ends within a field"):
            read_bpf_functions(SECTION[:size])
    with pytest.raises(PerfDataError, match="more than 65536 BPF programs"):
        read_bpf_functions(b"\xff" * 8)
    for offset in range(4, len(SECTION), 3):
        changed = bytearray(SECTION)
        changed[offset] ^= 0xFF
        try:
            assert sum(len(code) for _, code in read_bpf_functions(bytes(changed))) <= len(SECTION)
        except PerfDataError:
            continue


def test_bpf_program_loaded_during_recording_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recording has its code, which need not be in a copy of memory."""
    machine = Machine()
    machine.syscall()
    loaded = machine.time
    machine.syscall(calls=BPF)
    machine.syscall()
    monkeypatch.setattr(KernelWriter, "more", {Feature.BPF_PROG_INFO: SECTION})
    data = recording.write(machine, tmp_path / "perf.data", bpf_at=loaded)
    with Trace(data) as trace:
        (stream,) = trace.streams
        ips = [int(ip) for part in stream.instructions() for ip in part.ip]
        assert ips == [ip for _, ip in machine.ran]
