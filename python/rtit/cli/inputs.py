"""The recording that a reading verb opens, and where the files are that it ran."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, BinaryIO

from rtit.cli.bare import is_bare, opened_bare
from rtit.cli.bare_values import guest_tsc
from rtit.cli.selecting import count, processor
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.image import KernelFiles
    from rtit.trace import Trace

_DEFAULT = "perf.data"


def add_file(parser: argparse.ArgumentParser) -> None:
    """The recording."""
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help=f"default: {_DEFAULT}; - reads a pipe"
    )
    parser.add_argument(
        "-i", "--input", metavar="FILE", help="the same, as perf has it", dest="input"
    )


def add_images(parser: argparse.ArgumentParser) -> None:
    """Where the recorded files are now."""
    parser.add_argument(
        "--symfs", metavar="DIR", help="look for the recorded files below this folder"
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="RECORDED=FILE",
        help="look for this recorded file, or what is in this recorded folder, there; may be "
        "repeated, and goes before --symfs",
    )
    parser.add_argument(
        "--buildid-dir",
        metavar="DIR",
        help="look for recorded files that are gone, or others now, here by their build ids, as "
        "perf keeps them (~/.debug)",
    )
    parser.add_argument(
        "--debuginfod",
        action="store_true",
        help="ask the servers of DEBUGINFOD_URLS for such files, and for symbols; nothing else "
        "uses the network",
    )
    parser.add_argument(
        "--guest-tsc",
        action="append",
        metavar="[VMCS:]OFFSET[,MULTIPLIER]",
        help="of a virtual machine that was traced with its host: what it sees of the TSC, "
        "OFFSET + TSC * MULTIPLIER / 2^48, each time for the machine with this VMCS, or once for "
        "all; auto: offsets are found where TMA packets tell; all time is then the host's",
    )
    parser.add_argument(
        "--jit",
        action="append",
        metavar="PATH",
        help="code that programs made: a file called jit-PID.dump or perf-PID.map, or a folder "
        "with such files; may be repeated; default: those beside the recording",
    )
    add_kernel(parser)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """How many decode."""
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        metavar="N",
        help="so many threads decode each stream, 1 to 255; what comes out is the same; default: "
        "one for results in order, for counts as many as the machine runs at once, 8 at most",
    )


def add_places(parser: argparse.ArgumentParser, *, calls: bool = False) -> None:
    """How much is counted by place; `calls` may be, too."""
    more = "; calls are told apart between half as many pairs of places" if calls else ""
    parser.add_argument(
        "--places",
        type=count,
        default=0,
        metavar="N",
        help="so many runs of instructions and so many transfers have counts of their own, the "
        "first in the order of their addresses; of more the sum is told; default: 524,288 and "
        "one more for each 1,024 bytes of PT, 4,194,304 at most and where their number is not "
        f"known{more}",
    )


def add_kernel(parser: argparse.ArgumentParser) -> None:
    """Where the code of the kernel is, if that was traced."""
    group = parser.add_argument_group(
        "kernel code (what perf record --kcore keeps is found without these)"
    )
    group.add_argument("--kcore", metavar="FILE", help="a copy of /proc/kcore")
    group.add_argument("--kallsyms", metavar="FILE", help="a copy of /proc/kallsyms: names")
    group.add_argument("--vmlinux", metavar="FILE", help="the kernel as it was linked")
    group.add_argument(
        "--kernel-modules", metavar="DIR", help="its modules, such as /lib/modules/RELEASE"
    )
    group = parser.add_argument_group("kernels of virtual machines, by perf's names")
    group.add_argument(
        "--guestmount",
        metavar="DIR",
        help="root file systems of virtual machines, each in a folder called as its process",
    )
    group.add_argument(
        "--guest-process",
        action="append",
        default=[],
        metavar="CR3[,VMCS]=MACHINE/PID",
        help="process PID of the virtual machine MACHINE, below --guestmount, runs with this CR3 "
        "(and VMCS pointer); may be repeated",
    )
    group.add_argument(
        "--guestkallsyms",
        "--guest-kallsyms",
        dest="guest_kallsyms",
        metavar="FILE",
        help="of those that are not there: a copy of /proc/kallsyms",
    )
    group.add_argument(
        "--guestvmlinux",
        "--guest-vmlinux",
        dest="guest_vmlinux",
        metavar="FILE",
        help="the kernel as it was linked",
    )
    group.add_argument(
        "--guestmodules", metavar="FILE", help="a copy of /proc/modules: where modules were"
    )
    group.add_argument("--guest-kcore", metavar="FILE", help="a copy of /proc/kcore")
    group.add_argument("--guest-kernel-modules", metavar="DIR", help="the modules themselves")


def _guest(arguments: argparse.Namespace) -> KernelFiles | None:
    from rtit.image import KernelFiles

    found = KernelFiles(
        kcore=getattr(arguments, "guest_kcore", None),
        kallsyms=getattr(arguments, "guest_kallsyms", None),
        vmlinux=getattr(arguments, "guest_vmlinux", None),
        modules=getattr(arguments, "guest_kernel_modules", None),
        listed=getattr(arguments, "guestmodules", None),
    )
    return found if found.any else None


def named(arguments: argparse.Namespace) -> str | BinaryIO:
    """The file that the options name, or standard input. Raises UsageError if they name two."""
    if arguments.file is not None and arguments.input is not None:
        raise UsageError(f"two files given: {arguments.file} and -i {arguments.input}")
    given = arguments.file if arguments.file is not None else arguments.input
    name: str = _DEFAULT if given is None else given
    if name != "-":
        return name
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    return sys.stdin.buffer


def opened(arguments: argparse.Namespace) -> Trace:
    """The trace that the options name. Raises UsageError and what `Trace` or `decode` does."""
    from rtit.image import KernelFiles
    from rtit.trace import Trace
    from rtit.trace.settings import cpu_named

    model = processor(arguments)
    if is_bare(arguments):
        return opened_bare(arguments, model)
    path_map = dict(_place(text) for text in getattr(arguments, "map", []))
    return Trace(
        named(arguments),
        symfs=getattr(arguments, "symfs", None),
        path_map=path_map,
        cpu=cpu_named(model) if model is not None else None,
        build_id_cache=getattr(arguments, "buildid_dir", None),
        debuginfod=getattr(arguments, "debuginfod", False),
        guest_tsc=guest_tsc(getattr(arguments, "guest_tsc", None)),
        guest=_guest(arguments),
        guest_mount=getattr(arguments, "guestmount", None),
        guest_processes=getattr(arguments, "guest_process", ()),
        jit=getattr(arguments, "jit", None),
        threads=getattr(arguments, "threads", 0),
        places=getattr(arguments, "places", 0),
        kernel=KernelFiles(
            kcore=getattr(arguments, "kcore", None),
            kallsyms=getattr(arguments, "kallsyms", None),
            vmlinux=getattr(arguments, "vmlinux", None),
            modules=getattr(arguments, "kernel_modules", None),
        ),
    )


def _place(text: str) -> tuple[str, str]:
    recorded, _, file = text.partition("=")
    if not recorded or not file:
        raise UsageError(f"--map takes RECORDED=FILE, not {text!r}")
    return recorded, file
