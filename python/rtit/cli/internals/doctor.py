"""`rtit doctor`: checks what this machine supports, and prints remedies."""

from __future__ import annotations

import argparse
import ctypes.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rtit.cli import options, output
from rtit.cli.parser import CommandParser


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the report; `ok` is None for neither good nor bad."""

    topic: str
    ok: bool | None
    text: str


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit doctor [options]"
    parser.description = "Check which PT hardware, back ends, tools and symbols this machine has."
    parser.epilog = "Example:\n  rtit doctor\n"
    options.add_json_option(parser.add_argument_group("Output"), "Print the findings as JSON")
    parser.add_general_options()


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if recording or decoding does not work at all."""
    findings = [check() for check in _CHECKS]
    if arguments.json:
        output.write_json([asdict(each) for each in findings], indent=2)
    else:
        width = max(len(each.topic) for each in findings)
        for each in findings:
            mark = {True: "yes", False: "no ", None: "-  "}[each.ok]
            output.print_line(f"{each.topic:{width}}  {mark}  {each.text}")
    needed = {"decoder", "recording"}
    return int(any(each.ok is False for each in findings if each.topic in needed))


def _check_pt_hardware() -> DoctorFinding:
    from rtit.capture.perf.availability import PMU, reason_for_no_hardware

    problem = reason_for_no_hardware()
    if problem is None:
        return DoctorFinding("PT hardware", True, f"available in the kernel: /{PMU}")
    return DoctorFinding(
        "PT hardware", False, f"not needed, because rtit generates PT in software; {problem}"
    )


def _hardware_recording() -> DoctorFinding:
    from rtit.capture.perf.availability import (
        describe_kernel_limits,
        find_perf,
        reason_for_no_hardware,
        reason_for_no_permission,
    )

    if reason_for_no_hardware() is not None:
        return DoctorFinding("record --backend perf", None, "needs PT hardware")
    found = find_perf()
    if isinstance(found, str):
        return DoctorFinding("record --backend perf", None, f"not available: {found}")
    text = f"{found.perf} {found.version}; rtit has not been tested on PT hardware yet"
    forbidden = [
        problem
        for problem in (
            reason_for_no_permission(kernel=True),
            reason_for_no_permission(kernel=True, all_cpus=True),
        )
        if problem is not None
    ]
    return DoctorFinding(
        "record --backend perf", True, "; ".join([text, *forbidden[:1], *describe_kernel_limits()])
    )


def _check_native_decoder() -> DoctorFinding:
    try:
        from rtit import _core
    except ImportError as error:
        return DoctorFinding("decoder", False, f"the native module does not load: {error}")
    return DoctorFinding("decoder", True, f"native module {_core.__version__}")


def _check_ptrace() -> DoctorFinding:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return DoctorFinding(
            "recording", False, "needs Linux on x86-64; on this machine rtit only decodes"
        )
    from rtit.capture.ptrace.session import PtraceTracer
    from rtit.errors import RecordError

    try:
        tracer = PtraceTracer(["/bin/true"])
    except RecordError as error:
        return DoctorFinding("recording", False, str(error))
    tracer.kill()
    while tracer.next_batch(1.0) is not None:
        pass
    return DoctorFinding(
        "recording", True, "ptrace single-stepping works (10 to 50 microseconds per instruction)"
    )


def _check_qemu() -> DoctorFinding:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return DoctorFinding("QEMU", None, "not checked, because recording needs Linux on x86-64")
    from rtit.capture.qemu.installation import find_qemu

    found = find_qemu()
    if isinstance(found, str):
        return DoctorFinding("QEMU", False, f"{found}; rtit records by single-stepping")
    return DoctorFinding("QEMU", True, f"{found.qemu} {found.version} (fast recording)")


def _check_perf() -> DoctorFinding:
    found = shutil.which("perf")
    if found is None:
        return DoctorFinding(
            "perf",
            None,
            "not installed (Debian: linux-perf); --backend perf and the comparison tests need perf",
        )
    ended = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    return DoctorFinding("perf", True, ended.stdout.strip() or found)


def _check_libipt() -> DoctorFinding:
    found = ctypes.util.find_library("ipt")
    if found is None:
        return DoctorFinding(
            "libipt",
            None,
            "not installed (Debian: libipt-dev); only the comparison tests need libipt",
        )
    return DoctorFinding("libipt", True, found)


def _check_gdb() -> DoctorFinding:
    from rtit.errors import UnsupportedError
    from rtit.gdb.debugger import find_gdb

    try:
        found = find_gdb()
    except UnsupportedError as error:
        return DoctorFinding("gdb", None, f"{error}; rtit gdb needs gdb")
    how = "reads PT" if found.has_libipt else "was built without libipt, so rtit gdb sends blocks"
    return DoctorFinding("gdb", True, f"{found.argv[0]}, which {how}")


def _check_debug_symbols() -> DoctorFinding:
    folder = Path("/usr/lib/debug")
    has = folder.is_dir() and any(folder.iterdir())
    text = f"of the programs themselves{f', and debug files in {folder}' if has else ''}"
    if os.environ.get("DEBUGINFOD_URLS"):
        text += "; DEBUGINFOD_URLS is set (used with --debuginfod)"
    return DoctorFinding("symbols", True, text)


_CHECKS: tuple[Callable[[], DoctorFinding], ...] = (
    _check_pt_hardware,
    _hardware_recording,
    _check_native_decoder,
    _check_ptrace,
    _check_qemu,
    _check_perf,
    _check_libipt,
    _check_gdb,
    _check_debug_symbols,
)
