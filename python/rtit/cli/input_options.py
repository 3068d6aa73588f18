"""The recording that a command opens, and where the files are that it ran."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, BinaryIO

from rtit.cli.parser import CommandParser
from rtit.cli.raw_options import add_raw, add_raw_code, guest_tsc, is_raw, jobs, open_raw_trace
from rtit.cli.selection_options import count
from rtit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rtit.image import KernelFiles
    from rtit.trace import Trace

_DEFAULT = "perf.data"
RARE = "options for JIT code, kernels, guests and raw PT"
ONE_JOB = "1; the output does not change"
MANY_JOBS = "one for each CPU, at most 8; the result does not change"


def add_file(parser: argparse.ArgumentParser) -> None:
    """Declare FILE and -i."""
    group = parser.add_argument_group()
    group.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help=f"Recording to read; - for standard input (default: {_DEFAULT})",
    )
    group.add_argument(
        "-i", "--input", metavar="FILE", help="The same, as perf spells it", dest="input"
    )


def add_images(parser: CommandParser) -> None:
    """Declare the options for code: files, and with --help-all JIT code, kernels and guests."""
    group = parser.add_argument_group("Finding code")
    group.add_argument("--symfs", metavar="DIR", help="Look for recorded files below DIR")
    group.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="RECORDED=LOCAL",
        help="Read LOCAL in place of the recorded file or directory; may be repeated",
    )
    group.add_argument(
        "--buildid-dir",
        metavar="DIR",
        help="Look up files by build id in DIR, such as ~/.debug",
    )
    group.add_argument(
        "--debuginfod",
        action="store_true",
        help="Download missing files and symbols from DEBUGINFOD_URLS",
    )
    group = parser.add_rare_group("JIT code")
    group.add_argument(
        "--jit",
        action="append",
        metavar="PATH",
        help="Code that programs made: a file named jit-PID.dump or perf-PID.map, or a directory "
        "with such files; may be repeated (default: those beside the recording)",
    )
    _add_kernel(parser)
    _add_guests(parser)


def add_reading(parser: CommandParser, *, jobs: str = ONE_JOB) -> None:
    """Declare the options for code, raw PT and help, as most commands have them."""
    add_images(parser)
    add_raw_code(add_raw(parser))
    parser.add_general_options(jobs=jobs, rare=RARE)


def add_max_edges(parser: CommandParser, *, calls: bool = False) -> None:
    """Declare --max-edges; `calls`: edges of calls are counted by caller, too."""
    more = "; half as many pairs of caller and callee" if calls else ""
    parser.add_rare_group("Limits").add_argument(
        "--max-edges",
        type=count,
        default=0,
        metavar="N",
        help="Count up to N different edges and N different runs of instructions, those with the "
        "lowest addresses; the others only in total (default: 524,288 and 1 for each 1,024 bytes "
        f"of PT; 4,194,304 at most){more}",
    )


def _add_kernel(parser: CommandParser) -> None:
    group = parser.add_rare_group("Kernel code (a recording with --kcore needs none of these)")
    group.add_argument("--kcore", metavar="FILE", help="A copy of /proc/kcore")
    group.add_argument("--kallsyms", metavar="FILE", help="A copy of /proc/kallsyms: names")
    group.add_argument("--vmlinux", metavar="FILE", help="The kernel as it was linked")
    group.add_argument(
        "--kernel-modules", metavar="DIR", help="Kernel modules, such as /lib/modules/RELEASE"
    )


def _add_guests(parser: CommandParser) -> None:
    group = parser.add_rare_group("Virtual machines (names as in perf)")
    group.add_argument(
        "--guestmount",
        metavar="DIR",
        help="Root file systems of virtual machines, each in a directory named as its process id",
    )
    group.add_argument(
        "--guest-process",
        action="append",
        default=[],
        metavar="CR3[,VMCS]=MACHINE/PID",
        help="Process PID of the virtual machine MACHINE, below --guestmount, runs with this CR3 "
        "(and VMCS pointer); may be repeated",
    )
    group.add_argument(
        "--guestkallsyms",
        dest="guest_kallsyms",
        metavar="FILE",
        help="A copy of /proc/kallsyms, for machines that are not below --guestmount",
    )
    group.add_argument(
        "--guestvmlinux", dest="guest_vmlinux", metavar="FILE", help="The kernel as it was linked"
    )
    group.add_argument(
        "--guestmodules", metavar="FILE", help="A copy of /proc/modules: addresses of modules"
    )
    group.add_argument("--guest-kcore", metavar="FILE", help="A copy of /proc/kcore")
    group.add_argument("--guest-kernel-modules", metavar="DIR", help="Kernel modules")
    group.add_argument(
        "--guest-tsc",
        action="append",
        metavar="[VMCS:]OFFSET[,MULTIPLIER]",
        help="The TSC of a guest that was traced with its host, OFFSET + TSC * MULTIPLIER / 2^48: "
        "once for each VMCS, or once for all; auto: find the offsets in TMA packets. All times are "
        "then those of the host",
    )


def _guest(arguments: argparse.Namespace) -> KernelFiles | None:
    from rtit.image import KernelFiles

    found = KernelFiles(
        kcore=getattr(arguments, "guest_kcore", None),
        kallsyms=getattr(arguments, "guest_kallsyms", None),
        vmlinux=getattr(arguments, "guest_vmlinux", None),
        modules=getattr(arguments, "guest_kernel_modules", None),
        listed=getattr(arguments, "guestmodules", None),
    )
    return found if found.has_files else None


def input_path(arguments: argparse.Namespace) -> str | BinaryIO:
    """Return the file that the options name, or standard input. Raises UsageError for two files."""
    if arguments.file is not None and arguments.input is not None:
        raise UsageError(f"two files given: {arguments.file} and -i {arguments.input}")
    given = arguments.file if arguments.file is not None else arguments.input
    name: str = _DEFAULT if given is None else given
    if name != "-":
        return name
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    return sys.stdin.buffer


def open_trace(arguments: argparse.Namespace, matched: set[str] | None = None) -> Trace:
    """Open the trace that the options name. Raises UsageError and what `Trace` or `decode` does.

    A command that opens several passes `matched`, which collects the entries of --map that are in
    one of them, and then calls `check_map`.
    """
    from rtit.image import KernelFiles
    from rtit.trace import Trace
    from rtit.trace.recording.settings import parse_cpu

    if is_raw(arguments):
        return open_raw_trace(arguments)
    model = getattr(arguments, "cpu_model", None)
    path_map = dict(_mapping(text) for text in getattr(arguments, "map", []))
    trace = Trace(
        input_path(arguments),
        symfs=getattr(arguments, "symfs", None),
        path_map=path_map,
        cpu=parse_cpu(model) if model is not None else None,
        build_id_cache=getattr(arguments, "buildid_dir", None),
        debuginfod=getattr(arguments, "debuginfod", False),
        guest_tsc=guest_tsc(getattr(arguments, "guest_tsc", None)),
        guest=_guest(arguments),
        guest_mount=getattr(arguments, "guestmount", None),
        guest_processes=getattr(arguments, "guest_process", ()),
        jit=getattr(arguments, "jit", None),
        jobs=jobs(arguments),
        max_counters=getattr(arguments, "max_edges", 0),
        kernel=KernelFiles(
            kcore=getattr(arguments, "kcore", None),
            kallsyms=getattr(arguments, "kallsyms", None),
            vmlinux=getattr(arguments, "vmlinux", None),
            modules=getattr(arguments, "kernel_modules", None),
        ),
    )
    try:
        found = _matched(trace, path_map)
        if matched is None:
            check_map(arguments, found)
        else:
            matched |= found
    except BaseException:
        trace.close()
        raise
    return trace


def _mapping(text: str) -> tuple[str, str]:
    recorded, _, local = text.partition("=")
    if not recorded or not local:
        raise UsageError(f"--map {text}: expected RECORDED=LOCAL", hint="example: --map /bin/a=./a")
    return recorded, local


def _matched(trace: Trace, path_map: Iterable[str]) -> set[str]:
    """Return the entries of --map that name a recorded file or directory."""
    if not path_map:
        return set()
    paths = {each.path for mappings in trace.mappings().values() for each in mappings}
    return {
        recorded
        for recorded in path_map
        if any(f"{path}/".startswith(f"{recorded.rstrip('/')}/") for path in paths)
    }


def check_map(arguments: argparse.Namespace, matched: Collection[str]) -> None:
    """Raise UsageError for an entry of --map that is not among `matched`."""
    if is_raw(arguments):
        return
    for text in getattr(arguments, "map", []):
        recorded, _ = _mapping(text)
        if recorded not in matched:
            raise UsageError(
                f"--map {text}: the recording has no file {recorded}",
                hint="rtit info lists the recorded files",
            )
