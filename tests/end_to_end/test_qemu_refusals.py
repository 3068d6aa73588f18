"""Programs that the QEMU back end refuses get one error line, an exit code, and no execution."""

from __future__ import annotations

import os
import resource
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.recordings import RTIT

pytestmark = pytest.mark.usefixtures("qemu")

EXIT_7 = bytes.fromhex("b801000000 bb07000000 cd80".replace(" ", ""))  # exit(7)


def record_under_qemu(
    folder: Path,
    *words: str | bytes | Path,
    options: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    preexec: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RTIT, "record", "--backend", "qemu", "-q", *options, "--", *words],
        cwd=folder,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=300,
        preexec_fn=preexec,
    )


def single_error_line(ended: subprocess.CompletedProcess[str], code: int) -> str:
    assert ended.returncode == code, ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.stderr.startswith("rtit record: ")
    return ended.stderr


def write_script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def build_elf(bits: int, machine: int, code: bytes) -> bytes:
    """Return a program of one segment, as the System V ABI lays it out."""
    base = 0x10000
    if bits == 32:
        size, segment = 52, 32
        head = struct.pack("<HHIIIIIHHHHHH", 2, machine, 1, base + size + segment, size, 0, 0,
                           size, segment, 1, 0, 0, 0)  # fmt: skip
        whole = size + segment + len(code)
        write_program = struct.pack("<IIIIIIII", 1, 0, base, base, whole, whole, 5, 4096)
        return b"\x7fELF\1\1\1" + bytes(9) + head + write_program + code
    size, segment = 64, 56
    head = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, base + size + segment, size, 0, 0,
                       size, segment, 1, 0, 0, 0)  # fmt: skip
    whole = size + segment + len(code)
    write_program = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, whole, whole, 4096)
    return b"\x7fELF\2\1\1" + bytes(9) + head + write_program + code


def write_program(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("name", ["no_such_program", "./none", "/nowhere/none"])
def test_nonexistent_program_exits_127(name: str, tmp_path: Path) -> None:
    assert name in single_error_line(record_under_qemu(tmp_path, name), 127)


def test_file_that_cannot_be_executed_exits_126(tmp_path: Path) -> None:
    single_error_line(record_under_qemu(tmp_path, tmp_path), 126)
    write_script(tmp_path / "text", "hello\n")
    assert "./text" in single_error_line(record_under_qemu(tmp_path, "./text"), 126)
    write_script(tmp_path / "blank", "#! \n")
    assert "./blank" in single_error_line(record_under_qemu(tmp_path, "./blank"), 126)
    write_script(tmp_path / "script", "#!/nowhere/interpreter -x\n")
    assert "/nowhere/interpreter" in single_error_line(record_under_qemu(tmp_path, "./script"), 126)
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    single_error_line(record_under_qemu(tmp_path, "./plain"), 126)
    assert not (tmp_path / "perf.data").exists()


def test_truncated_program_exits_126(tmp_path: Path) -> None:
    good = Path("/bin/true").read_bytes()
    for size in (5, 30, 63, 100):
        write_program(tmp_path / "cut", good[:size])
        assert "./cut" in single_error_line(record_under_qemu(tmp_path, "./cut"), 126)
    loader = b"/lib64/ld-linux-x86-64.so.2"
    if loader not in good:
        pytest.skip("/bin/true has another loader")
    write_program(tmp_path / "loaderless", good.replace(loader, loader[:-1] + b"9"))
    assert "ld-linux-x86-64.so.9" in single_error_line(
        record_under_qemu(tmp_path, "./loaderless"), 126
    )
    # If the recorded program executes it, the recorded program handles the error.
    ended = record_under_qemu(tmp_path, "/bin/sh", "-c", "./loaderless 2>&-; echo $?")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "127\n", "")


def test_32_bit_program_is_refused_or_runs_unrecorded(tmp_path: Path) -> None:
    write_program(tmp_path / "old", build_elf(32, 3, EXIT_7))
    assert "64-bit" in single_error_line(record_under_qemu(tmp_path, "./old"), 125)
    if subprocess.run(["./old"], cwd=tmp_path, check=False).returncode != 7:
        pytest.skip("this kernel runs no 32-bit programs")
    ended = record_under_qemu(tmp_path, "/bin/sh", "-c", "./old; echo $?")
    assert (ended.returncode, ended.stdout) == (0, "7\n")
    assert single_error_line(ended, 0).endswith(
        "./old runs unrecorded: it is no 64-bit x86-64 program\n"
    )


def test_unwritable_outputs_exit_125(tmp_path: Path) -> None:
    for option in ("-o", "--truth"):
        missing = record_under_qemu(tmp_path, "/bin/true", options=(option, "nowhere/file"))
        assert "nowhere/file: No such file" in single_error_line(missing, 125)
        full = record_under_qemu(tmp_path, "/bin/true", options=(option, "/dev/full"))
        assert "No space left on device" in single_error_line(full, 125)
    (tmp_path / "folder").mkdir()
    assert "directory" in single_error_line(
        record_under_qemu(tmp_path, "/bin/true", options=("-o", "folder")), 125
    )


def test_output_beyond_file_size_limit_exits_125_and_stays_readable(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))

    # the limit would also truncate Python's bytecode files
    env = {"PYTHONDONTWRITEBYTECODE": "1"}
    ended = record_under_qemu(
        tmp_path, "/bin/sh", "-c", "/bin/ls -l /; sleep 100", env=env, preexec=limit
    )
    assert "File too large" in single_error_line(ended, 125)
    # The output written before stays readable.
    report = subprocess.run(
        [*RTIT, "report", "perf.data"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "incomplete" in report.stdout + report.stderr


def test_missing_or_unusable_qemu_exits_125(tmp_path: Path) -> None:
    def said(**env: str) -> str:
        return single_error_line(record_under_qemu(tmp_path, "/bin/true", env=env), 125)

    assert "not installed" in said(PATH="/nowhere")
    assert "No such file" in said(RTIT_QEMU="/nowhere/qemu")
    assert "plugin" in said(RTIT_QEMU_PLUGIN="/nowhere/plugin.so")
    text = write_script(tmp_path / "plugin.so", "no library")
    assert "does not load the plugin" in said(RTIT_QEMU_PLUGIN=str(text))
    version = "[ $1 = --version ] && echo qemu-x86_64 version 99 && exit\n"
    refusing = write_script(
        tmp_path / "refusing", f"#!/bin/sh\n{version}echo $0: unknown option -plugin >&2\nexit 1\n"
    )
    assert "unknown option -plugin" in said(RTIT_QEMU=str(refusing))
    newer = write_script(
        tmp_path / "newer",
        f"#!/bin/sh\n{version}echo plugin requires API version 2, but this QEMU supports only a "
        "minimum version of 8 >&2\nexit 1\n",
    )
    assert "minimum version of 8" in said(RTIT_QEMU=str(newer))
    # It loads the plugin in the probe, but not for the program.
    late = write_script(
        tmp_path / "late",
        f"#!/bin/sh\n{version}[ $3 = /bin/true ] && echo this is for rtit record\nexit 1\n",
    )
    assert "ended before the program began" in said(RTIT_QEMU=str(late))


def test_set_user_id_program_is_refused_or_runs_unrecorded(tmp_path: Path) -> None:
    tool = write_program(tmp_path / "tool", Path("/bin/true").read_bytes())
    try:
        os.chown(tool, 65534, 65534)
    except PermissionError:
        pytest.skip("only root can give a file away")
    for mode, what in ((0o4755, "set-user-ID"), (0o2755, "set-group-ID")):
        tool.chmod(mode)
        sentence = f"is {what}, and QEMU cannot give it that privilege"
        assert f"tool {sentence}" in single_error_line(record_under_qemu(tmp_path, "./tool"), 125)
        said = single_error_line(record_under_qemu(tmp_path, "/bin/sh", "-c", "./tool; exit 0"), 0)
        assert f"./tool runs unrecorded: it {sentence}" in said


@pytest.mark.parametrize("backend", ["qemu", "auto"])
def test_set_user_id_program_gets_its_user_when_root_records(backend: str, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    tool = tmp_path / "id"
    (tmp_path / "id.c").write_text(
        "#include <stdio.h>\n#include <unistd.h>\n"
        'int main(void) { return printf("%d\\n", geteuid()) < 0; }\n'
    )
    # Few instructions, since they are single-stepped.
    subprocess.run([compiler, "-static", "-o", tool, tmp_path / "id.c"], check=True)
    try:
        os.chown(tool, 65534, -1)
    except PermissionError:
        pytest.skip("only root can give a file away")
    tool.chmod(0o4755)
    command = ["./id"] if backend == "auto" else ["/bin/sh", "-c", "./id; exit 0"]
    ended = record_under_qemu(tmp_path, *command, options=("--backend", backend))
    assert (ended.returncode, ended.stdout) == (0, "65534\n")
    assert "QEMU cannot give it that privilege" in single_error_line(ended, 0)


def limit_address_space() -> None:
    """Let QEMU start, but without memory for translated code."""
    resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))


def test_explicit_qemu_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    ended = record_under_qemu(tmp_path, "/bin/echo", "text", preexec=limit_address_space)
    assert (ended.returncode, ended.stdout) == (125, "")
    assert ended.stderr.endswith("ended before the program began\n")
    assert not (tmp_path / "perf.data").exists()


@pytest.mark.parametrize("command", ["record", "stat"])
def test_auto_falls_back_to_single_steps_where_qemu_cannot_start(
    command: str, program: Callable[[str], Path], tmp_path: Path
) -> None:
    ended = subprocess.run(
        [*RTIT, command, "--", program("fork")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        preexec_fn=limit_address_space,
    )
    assert (ended.returncode, ended.stdout) == (0, "sum 60\n"), ended.stderr
    assert "ended before the program began; recorded by single-stepping" in ended.stderr
    if command == "record":
        assert "; ptrace: QEMU cannot start ]" in ended.stderr


def test_auto_runs_a_32_bit_program_by_single_steps(tmp_path: Path) -> None:
    write_program(tmp_path / "old", build_elf(32, 3, EXIT_7))
    if subprocess.run(["./old"], cwd=tmp_path, check=False).returncode != 7:
        pytest.skip("this kernel runs no 32-bit programs")
    ended = record_under_qemu(tmp_path, "./old", options=("--backend", "auto"))
    assert ended.returncode == 7
    assert "runs only such programs; recorded by single-stepping" in ended.stderr
