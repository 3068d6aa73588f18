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
class Finding:
    """One line of the report; `ok` is None for neither good nor bad."""

    topic: str
    ok: bool | None
    text: str


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit doctor [options]"
    parser.description = "Check what this machine supports: PT hardware, back ends, tools, symbols."
    parser.epilog = "Example:\n  rtit doctor\n"
    options.add_json(parser.add_argument_group("Output"), "Print the findings as JSON")
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


def _hardware() -> Finding:
    from rtit.capture.perf.availability import PMU, reason_for_no_hardware

    problem = reason_for_no_hardware()
    if problem is None:
        return Finding("PT hardware", True, f"the kernel offers it: /{PMU}")
    return Finding("PT hardware", False, f"{problem}; rtit makes PT in software instead")


def _hardware_recording() -> Finding:
    from rtit.capture.perf.availability import (
        describe_kernel_limits,
        find_perf,
        reason_for_no_permission,
    )

    found = find_perf()
    if isinstance(found, str):
        return Finding("record --backend perf", None, f"not here: {found}")
    text = f"{found.perf} {found.version}; not yet tried on hardware by us"
    forbidden = [
        problem
        for problem in (
            reason_for_no_permission(kernel=True),
            reason_for_no_permission(kernel=True, all_cpus=True),
        )
        if problem is not None
    ]
    return Finding(
        "record --backend perf", True, "; ".join([text, *forbidden[:1], *describe_kernel_limits()])
    )


def _decoder() -> Finding:
    try:
        from rtit import _core
    except ImportError as error:
        return Finding("decoder", False, f"the native module does not load: {error}")
    return Finding("decoder", True, f"native module {_core.__version__}")


def _ptrace() -> Finding:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return Finding("recording", False, "needs Linux on x86-64; decoding works here")
    from rtit.capture.ptrace.session import PtraceTracer
    from rtit.errors import RecordError

    try:
        tracer = PtraceTracer(["/bin/true"])
    except RecordError as error:
        return Finding("recording", False, str(error))
    tracer.kill()
    while tracer.next_batch(1.0) is not None:
        pass
    return Finding(
        "recording", True, "ptrace single steps (exact; some 10 to 50 microseconds an instruction)"
    )


def _qemu() -> Finding:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return Finding("QEMU", None, "not looked for: recording needs Linux on x86-64")
    from rtit.capture.qemu.installation import find_qemu

    found = find_qemu()
    if isinstance(found, str):
        return Finding("QEMU", False, f"{found}; recording uses single steps")
    return Finding("QEMU", True, f"{found.qemu} {found.version} (fast recording)")


def _perf() -> Finding:
    found = shutil.which("perf")
    if found is None:
        return Finding(
            "perf",
            None,
            "not installed (Debian: linux-perf); PT hardware and the comparison tests need it",
        )
    ended = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    return Finding("perf", True, ended.stdout.strip() or found)


def _libipt() -> Finding:
    found = ctypes.util.find_library("ipt")
    if found is None:
        return Finding(
            "libipt", None, "not installed (Debian: libipt-dev); only the comparison tests need it"
        )
    return Finding("libipt", True, found)


def _gdb() -> Finding:
    from rtit.errors import UnsupportedError
    from rtit.gdb.debugger import find_gdb

    try:
        found = find_gdb()
    except UnsupportedError as error:
        return Finding("gdb", None, f"{error}; rtit gdb needs it")
    how = "reads PT" if found.has_libipt else "was built without libipt: rtit gdb gives it blocks"
    return Finding("gdb", True, f"{found.argv[0]}, which {how}")


def _symbols() -> Finding:
    folder = Path("/usr/lib/debug")
    has = folder.is_dir() and any(folder.iterdir())
    text = f"{folder} has debug files" if has else "from the programs' own symbol tables"
    if os.environ.get("DEBUGINFOD_URLS"):
        text += ", DEBUGINFOD_URLS is set (used with --debuginfod)"
    return Finding("symbols", None, text)


_CHECKS: tuple[Callable[[], Finding], ...] = (
    _hardware,
    _hardware_recording,
    _decoder,
    _ptrace,
    _qemu,
    _perf,
    _libipt,
    _gdb,
    _symbols,
)
