"""Address filters under QEMU select code by section 33.2.5.3.

The reference trace unit selects the same of the same program under single steps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from programs.build import PROGRAMS
from rtit.capture.ptrace.session import replay_events
from rtit.capture.qemu.installation import QemuInstallation
from rtit.capture.qemu.start import start_qemu
from rtit.capture.request import RecordRequest
from rtit.capture.session import Recording
from rtit.cli.main import main
from rtit.image.file_symbols import FileSymbols
from rtit.packets import Packet
from rtit.trace import Trace
from support.recordings import RecordedProgram, Recorder, record_to_end

ProgramBuilder = Callable[[str], Path]

FILTERED = [
    ("pointers", ["filter main", "tracestop choose"]),
    ("recursion", ["filter even"]),
    ("recursion", ["tracestop even"]),
    ("recursion", ["filter main", "filter odd"]),
    ("signal_nested", ["filter main"]),
    ("segv_caught", ["filter main"]),
    ("fork", ["filter main"]),
    ("exec_chain", ["filter main"]),
    ("exec_chain", ["tracestop main"]),
    ("fork", ["tracestop main"]),
    ("rep", ["filter main"]),
]
UNTIMED = "intel_pt/tsc=0,mtc=0/u"


def record_filtered(
    found: QemuInstallation,
    argv: list[str],
    folder: Path,
    filters: list[str],
    *,
    event: str = "intel_pt//u",
    truth_by_instruction: bool = False,
) -> Recording:
    session = start_qemu(
        RecordRequest(
            argv,
            output=folder / "data",
            truth=folder / "truth",
            filters=filters,
            event=event,
        ),
        installation=found,
        truth_by_instruction=truth_by_instruction,
    )
    return record_to_end(session)


def verify_recording(folder: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """Run `rtit verify`, and return the number of instructions that it compared."""
    code = main(["verify", str(folder / "data"), "--truth", str(folder / "truth")])
    printed = capsys.readouterr().out
    assert code == 0, printed
    return int(printed.splitlines()[-1].split()[1].replace(",", ""))


def decoded_paths(data: Path) -> list[list[int]]:
    """Return the decoded addresses of each thread."""
    with Trace(data) as trace:
        return sorted(
            [int(ip) for part in stream.instructions() for ip in part.ip]
            for stream in trace.streams
        )


def branch_packets(data: Path) -> list[tuple[str, bytes]]:
    """Return all packets that are neither time packets nor in a PSB+."""
    inside, found = False, []
    with Trace(data) as trace:
        for stream in trace.streams:
            for packet in stream.scan():
                assert isinstance(packet, Packet)
                name = packet.name
                if not inside and name not in ("PSB", "PAD"):
                    found.append((packet.name, packet.raw))
                inside = name == "PSB" or (inside and name != "PSBEND")
    return found


@pytest.mark.parametrize(("name", "filters"), FILTERED)
@pytest.mark.parametrize("by_instruction", [False, True])
def test_filters_select_the_same_path_as_under_single_steps(
    name: str,
    filters: list[str],
    by_instruction: bool,
    qemu: QemuInstallation,
    program: ProgramBuilder,
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [str(program(name)), *PROGRAMS[name].arguments]
    recording = record_filtered(qemu, argv, tmp_path, filters, truth_by_instruction=by_instruction)
    assert recording.warnings == ()
    part = verify_recording(tmp_path, capsys)
    assert 0 < part < recording.instructions
    stepped = tmp_path / "stepped"
    replay_events(record(argv).log, stepped, filters=[f"{each} @ {argv[0]}" for each in filters])
    assert decoded_paths(tmp_path / "data") == decoded_paths(stepped)


@pytest.fixture(scope="module")
def stepped_recording(record: Recorder, program: ProgramBuilder) -> RecordedProgram:
    return record([str(program("recursion"))])


@pytest.mark.parametrize("cut", range(0, 40, 3))
@pytest.mark.parametrize("action", ["filter", "tracestop"])
def test_filter_range_may_begin_and_end_anywhere_in_a_block(
    action: str,
    cut: int,
    qemu: QemuInstallation,
    stepped_recording: RecordedProgram,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The range begins and ends in the middle of blocks, of instructions, and at branch targets.
    exe = stepped_recording.argv[0]
    [even] = FileSymbols(exe).find_by_name("even")
    where = f"{action} {even.offset + cut:#x}/{3 + cut:#x} @ {exe}"
    record_filtered(qemu, [exe], tmp_path, [where], event=UNTIMED)
    stepped = tmp_path / "stepped"
    replay_events(stepped_recording.log, stepped, filters=[where], event=UNTIMED)
    assert branch_packets(tmp_path / "data") == branch_packets(stepped)
    assert decoded_paths(tmp_path / "data") == decoded_paths(stepped)
    main(["verify", str(tmp_path / "data"), "--truth", str(tmp_path / "truth")])
    # A range where no branch lands selects nothing.
    printed = capsys.readouterr().out
    assert "DIFFERENT" not in printed


@pytest.mark.parametrize("name", ["threads", "exec_from_thread"])
def test_filter_applies_to_all_threads(
    name: str,
    qemu: QemuInstallation,
    program: ProgramBuilder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = {"threads": "filter work", "exec_from_thread": "filter main"}[name]
    recording = record_filtered(qemu, [str(program(name))], tmp_path, [wanted])
    assert 0 < verify_recording(tmp_path, capsys) < recording.instructions


def test_filter_selects_library_mapped_later(
    qemu: QemuInstallation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["/bin/sh", "-c", "ls / | cat > /dev/null; exec /bin/true"]
    recording = record_filtered(
        qemu, argv, tmp_path, ["filter * @ /lib/x86_64-linux-gnu/libc.so.6"]
    )
    assert (recording.exit_code, recording.warnings) == (0, ())
    assert 1000 < verify_recording(tmp_path, capsys) < recording.instructions


def test_filter_does_not_select_next_program_at_the_same_addresses(
    qemu: QemuInstallation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # QEMU loads both at the same addresses: the filter means the first.
    argv = ["/bin/sh", "-c", "exec /bin/ls /"]
    record_filtered(qemu, argv, tmp_path, ["filter * @ /bin/sh"])
    part = verify_recording(tmp_path, capsys)
    assert part > 100
    with Trace(tmp_path / "data") as trace:
        [stream] = trace.streams
        assert stream.counts().instructions == part


def test_filter_that_selects_nothing_leaves_no_branch_packets(
    qemu: QemuInstallation, program: ProgramBuilder, tmp_path: Path
) -> None:
    argv = [str(program("pointers"))]
    recording = record_filtered(qemu, argv, tmp_path, ["filter * @ /bin/cat"], event=UNTIMED)
    assert recording.instructions > 1000
    assert decoded_paths(tmp_path / "data") == [[]]
    assert branch_packets(tmp_path / "data") == []


def test_verify_without_traced_instructions_has_nothing_to_compare(
    qemu: QemuInstallation,
    program: ProgramBuilder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [str(program("pointers"))]
    record_filtered(qemu, argv, tmp_path, ["filter * @ /bin/cat"], event=UNTIMED)
    assert main(["verify", str(tmp_path / "data"), "--truth", str(tmp_path / "truth")]) == 1
    printed = capsys.readouterr().out
    assert printed.endswith("\nnothing to compare: no instruction was traced\n")
    assert "DIFFERENT" not in printed
