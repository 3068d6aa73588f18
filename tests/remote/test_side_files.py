"""Files beside a recording at a URL: kernel symbols, and the code and names of JIT compilers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import rtit
from rtit.errors import PerfDataError
from rtit.image.kernel.kernel_files import KERNEL_PID
from rtit.packets import encode
from rtit.perfdata import SwitchRecords, Writer
from rtit.remote_files import RemoteFile
from rtit.trace.recording import remote_side_files
from rtit.trace.recording.remote_side_files import RemoteSideFiles
from support.recordings import Recorder
from support.remote import RangeServer, StoreFile

KERNEL, SIZE = 0xFFFFFFFF81000000, 0x1000
SYMBOLS = f"{KERNEL:016x} T _text\n{KERNEL + 0x100:016x} T helper\n".encode()


@pytest.fixture
def boot(tmp_path: Path) -> bytes:
    """Return a recording of a system that runs only its kernel."""
    path = tmp_path / "boot.data"
    with Writer(
        path,
        config=0x2401,
        cpuid="GenuineIntel,6,94,3",
        switches=SwitchRecords.CPU_WIDE,
        kernel=True,
        facts={"system": "qemu"},
    ) as out:
        out.kernel_mmap(KERNEL, SIZE, KERNEL, "[kernel.kallsyms]_text")
        data = encode("PSB") + encode("TSC", tsc=10) + encode("PSBEND")
        out.auxtrace(-1, -1, data, None, 10, cpu=0)
    return path.read_bytes()


def kernel_symbol(trace: rtit.Trace) -> str:
    return str(trace.symbols.lookup(KERNEL_PID, 0, KERNEL + 0x104))


def test_symbols_of_a_recorded_system_are_read_from_the_same_folder(
    boot: bytes, server: RangeServer, memory: StoreFile
) -> None:
    server.files |= {"/runs/boot.data": boot, "/runs/boot.data.kallsyms": SYMBOLS}
    memory("boot.data.kallsyms", SYMBOLS)
    for url in (server.url("/runs/boot.data?token=1"), memory("boot.data", boot)):
        with rtit.Trace(url) as trace:
            assert "helper" in kernel_symbol(trace)
    assert server.requests[-1] == "/runs/boot.data.kallsyms?token=1"


def test_recorded_system_without_symbols_is_read(boot: bytes, server: RangeServer) -> None:
    server.files["/boot.data"] = boot
    with rtit.Trace(server.url("/boot.data")) as trace:
        assert "helper" not in kernel_symbol(trace)


def test_size_of_files_beside_a_recording_is_bounded(
    boot: bytes, memory: StoreFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_side_files, "_MAX_SIZE", len(SYMBOLS) - 1)
    memory("boot.data.kallsyms", SYMBOLS)
    copies = RemoteSideFiles(RemoteFile(memory("boot.data", boot)))
    with pytest.raises(PerfDataError, match="the files beside the recording have more than"):
        copies.copy_kallsyms()


@pytest.mark.parametrize("kind", ["dump", "map"])
def test_jit_functions_have_names(
    kind: str,
    program: Callable[[str], Path],
    record: Recorder,
    memory: StoreFile,
    server: RangeServer,
) -> None:
    """By http, the folder has no list of files."""
    recorded = record([program("jit_compiler"), kind])
    with rtit.Trace(recorded.data) as trace:
        pid = trace.processes[0].pid
    name = f"jit-{pid}.dump" if kind == "dump" else f"perf-{pid}.map"
    written = recorded.folder / name if kind == "dump" else Path("/tmp") / name
    content, jit = recorded.data.read_bytes(), written.read_bytes()
    if kind == "map":
        written.unlink()
    memory(name, jit)
    server.files |= {"/perf.data": content, f"/{name}": jit}
    found = []
    for url in (memory("perf.data", content), server.url("/perf.data")):
        with rtit.Trace(url) as trace:
            names = {
                each
                for stream in trace.streams
                for each, _, _ in stream.instructions_by_function(trace.symbols)
            }
            found.append("twice" in names)
            assert [*trace.images.jit_files.values()] == [f"memory://remote/{name}"] * found[-1]
    assert found == [True, False]
