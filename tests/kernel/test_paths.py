"""Kernel and user code of the test machine decode to what ran, from each kind of kernel file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel import made, recording
from kernel.machine import BPF, Machine
from rtit.cli.main import main
from rtit.image import KERNEL_PID, Files, KernelFiles
from rtit.image.kernel.vmlinux import Vmlinux
from rtit.trace import Trace


def run_kernel_code(machine: Machine, *, patches: bool = True) -> Machine:
    """Run system calls, interrupts, a module, switches, and with `patches` flips of a static
    key.
    """
    one, two = machine.threads
    machine.syscall()
    machine.syscall(calls="made_open")
    machine.interrupt(2)
    machine.syscall(two)
    machine.interrupt()
    machine.syscall(calls="made_open")
    if patches:
        machine.flip_static_key(True)
    machine.syscall()
    machine.syscall(one)
    machine.syscall()
    if patches:
        machine.flip_static_key(False)
    machine.syscall()
    machine.syscall(two, calls="made_open")
    return machine


def path(trace: Trace) -> list[int]:
    (stream,) = trace.streams
    ips = [int(ip) for part in stream.instructions() for ip in part.ip]
    assert [span.kind for span in stream.ledger()] == ["exact"]
    return ips


@pytest.fixture(scope="module")
def machine() -> Machine:
    return run_kernel_code(Machine())


@pytest.fixture(scope="module")
def recorded(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording.write(machine, tmp_path_factory.mktemp("made") / "perf.data")


@pytest.fixture
def alone(recorded: Path) -> Path:
    """Return the recording without the copies beside it."""
    return recorded / "data"


@pytest.fixture
def copies(recorded: Path) -> Path:
    return recorded / "kcore_dir"


def executed_ips(machine: Machine) -> list[int]:
    return [ip for _, ip in machine.ran]


def test_kernel_path_is_decoded_from_kcore_in_recording(recorded: Path, machine: Machine) -> None:
    with Trace(recorded) as trace:
        assert path(trace) == executed_ips(machine)
        assert trace.image_problems == []


@pytest.mark.parametrize("isolated", [True, False])
def test_path_is_independent_of_page_table_isolation(isolated: bool, tmp_path: Path) -> None:
    """The CR3 of kernel code does not matter."""
    machine = run_kernel_code(Machine(isolated=isolated))
    with Trace(recording.write(machine, tmp_path / "perf.data")) as trace:
        assert path(trace) == executed_ips(machine)


def test_interpreter_decodes_the_same_kernel_path(recorded: Path, machine: Machine) -> None:
    from dataclasses import replace

    from rtit.trace import Settings

    with Trace(recorded) as trace:
        (stream,) = trace.streams
        assert isinstance(stream.settings, Settings)
        slow = replace(stream, settings=replace(stream.settings, walk=True))
        assert [int(ip) for part in slow.instructions() for ip in part.ip] == executed_ips(machine)


def test_kernel_path_is_decoded_from_kcore_option(
    alone: Path, copies: Path, machine: Machine
) -> None:
    files = KernelFiles(kcore=str(copies / "kcore"), kallsyms=str(copies / "kallsyms"))
    with Trace(alone, kernel=files) as trace:
        assert path(trace) == executed_ips(machine)


def test_kernel_path_is_decoded_from_vmlinux_and_module_files(
    alone: Path, copies: Path, machine: Machine
) -> None:
    """The kernel file is relocated to its runtime address, and the module linked to it."""
    files = KernelFiles(
        vmlinux=str(made.kernel().path),
        kallsyms=str(copies / "kallsyms"),
        modules=str(made.module().parent),
    )
    with Trace(alone, kernel=files) as trace:
        assert path(trace) == executed_ips(machine)
        assert trace.image_problems == []
        symbols = trace.symbols
        assert str(symbols.lookup(100, 0, machine.at["schedule"] + 1)) == "schedule+0x1"


COUNTED = """
    .text
    .globl _text
_text: _stext:
    ret
    .type plain, @function
plain:
    push %rbp
1:  call tracer
    ret
    .type patched, @function
patched:
2:  .byte 0x0f, 0x1f, 0x44, 0, 0
    ret
tracer:
    ret
    .data
    .globl __start_mcount_loc, __stop_mcount_loc, __start___jump_table, __stop___jump_table
__start_mcount_loc:
    .quad 1b, 2b, 0, -1, _text
__stop_mcount_loc:
__start___jump_table:
    .zero 48
__stop___jump_table:
"""


def test_tracer_calls_in_mcount_table_are_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Linux, scripts/recordmcount.c and kernel/trace/ftrace.c: __mcount_loc has the addresses of
    all calls that ftrace replaces by no-ops at boot, anywhere in a function.
    """
    data_at = made.LINKED + 0x10_0000
    built = made._linked("counted", COUNTED, {".text": made.LINKED, ".data": data_at}, {})
    code = built.code[made.LINKED]
    found = Vmlinux(str(built.path), Files())
    (piece,) = [bytes(code) for address, code, _ in found.segments if address == made.LINKED]
    assert piece[: len(code)] == code[:2] + made.NOP + code[7:]
    assert code[2] == 0xE8
    assert found.static_keys == 3


def test_info_reports_unpatched_kernel(
    alone: Path, copies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    linked = ["--vmlinux", str(made.kernel().path), "--kallsyms", str(copies / "kallsyms")]
    for words, is_linked in ((linked, True), (["--kcore", str(copies / "kcore")], False)):
        main(["info", str(alone), *words])
        said = capsys.readouterr().out
        assert ("a copy of /proc/kcore would help" in said) is is_linked


def test_vmlinux_has_kernel_symbols(alone: Path, machine: Machine) -> None:
    with Trace(alone, kernel=KernelFiles(vmlinux=str(made.kernel().path))) as trace:
        assert str(trace.symbols.lookup(100, 0, machine.at["helper"])) == "helper"
        assert [problem.path for problem in trace.image_problems] == [recording.MODULE_PATH]


def test_missing_kernel_files_are_reported(alone: Path, machine: Machine) -> None:
    """User code is decoded, and missing files are named."""
    with Trace(alone) as trace:
        (stream,) = trace.streams
        ips = [int(ip) for part in stream.instructions() for ip in part.ip]
        user = [ip for ip in executed_ips(machine) if ip < 1 << 63]
        assert ips == user
        kernel, module = trace.image_problems
        assert kernel.path == "[kernel.kallsyms]_text"
        assert "record with perf record --kcore" in kernel.message
        assert module.path == recording.MODULE_PATH
        assert any(span.is_gap for span in stream.ledger())


def test_kernel_code_changed_by_text_poke_is_decoded(tmp_path: Path) -> None:
    """A copy from the end has the last code, one from the start the first. The records have the
    bytes before each change, so that both give the same path.
    """
    machine = Machine()
    for on in (True, False, True):
        machine.syscall()
        machine.flip_static_key(on)
    machine.syscall()
    data = recording.write(machine, tmp_path / "perf.data")
    machine.booted = {address: bytes(code) for address, code in machine.memory.items()}
    recording.write_copies(machine, tmp_path / "late")
    late = KernelFiles(kcore=str(tmp_path / "late" / "kcore"))
    for kernel in (None, late):
        with Trace(data, kernel=kernel) as trace:
            assert path(trace) == executed_ips(machine)


@pytest.mark.parametrize("later", [False, True])
def test_bpf_program_loaded_before_the_copy_is_decoded(later: bool, tmp_path: Path) -> None:
    """A program loaded before the start is in the copy. The code of a later one is unknown,
    whatever the copy has at its address.
    """
    machine = Machine()
    machine.syscall()
    loaded = machine.time
    machine.syscall(calls=BPF)
    machine.syscall()
    data = recording.write(machine, tmp_path / "perf.data", bpf_at=loaded if later else 0)
    with Trace(data) as trace:
        (stream,) = trace.streams
        ips = [int(ip) for part in stream.instructions() for ip in part.ip]
        assert (BPF in ips) is not later
        assert any(span.is_gap for span in stream.ledger()) is later
        if not later:
            assert ips == executed_ips(machine)
        name = trace.symbols.lookup(KERNEL_PID, machine.time, BPF + 1)
        assert str(name) == f"{recording.BPF_NAME}+0x1"


def test_unloaded_bpf_program_is_unknown(tmp_path: Path) -> None:
    """The code at its address is unknown afterwards, whatever the copy has there."""
    machine = Machine()
    machine.syscall(calls=BPF)
    gone = machine.time
    machine.syscall(calls=BPF)
    data = recording.write(machine, tmp_path / "perf.data", bpf_gone=gone)
    with Trace(data) as trace:
        (stream,) = trace.streams
        ips = [int(ip) for part in stream.instructions() for ip in part.ip]
        assert ips.count(BPF) == 1 < executed_ips(machine).count(BPF)
        assert any(span.is_gap for span in stream.ledger())
