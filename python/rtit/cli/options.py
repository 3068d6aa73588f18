"""Options that several commands have, and the trace that they open.

They select a part of a recording (`rtit.trace.tables.selection`), name the recording and where its
files are (`rtit.trace.Trace`), or describe raw PT and its code in place of one (`rtit.decode`).
"""

from __future__ import annotations

import argparse
import copy
import sys
from glob import has_magic
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rtit.cli.parser import CommandParser
from rtit.errors import MissingFileError, PerfDataError, RtitError, UsageError
from rtit.remote_files import is_url

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from rtit.image import Image, KernelFiles
    from rtit.trace import Selection, SpaceKey, Start, Stream, Trace
    from rtit.trace.time.guest_time import GuestTsc


def add_value_option(
    group: argparse._ActionsContainer, option: str, metavar: str, text: str, **more: Any
) -> None:
    """Declare an option with a value; `text` is its help."""
    group.add_argument(option, metavar=metavar, help=text, **more)


def add_list_option(
    group: argparse._ActionsContainer, option: str, metavar: str, text: str
) -> None:
    """Declare an option that may be repeated."""
    group.add_argument(option, action="append", default=[], metavar=metavar, help=text)


def add_flag_option(group: argparse._ActionsContainer, option: str, text: str) -> None:
    """Declare an option without a value."""
    group.add_argument(option, action="store_true", help=text)


def add_stream_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declare the options that select threads and CPUs; return their group."""
    group = parser.add_argument_group("Selection")
    for option, metavar, text in (
        ("--tid", "TID,...", "Only these threads"),
        ("--pid", "PID,...", "Only these processes"),
        (
            "--comm",
            "NAME,...",
            "Only threads with these names. If a thread was renamed, give its latest name",
        ),
        ("--cpu", "N,...", "Only these CPUs"),
    ):
        group.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    return group


def add_code_selection_options(group: argparse._ArgumentGroup) -> None:
    """Declare the options that select functions, addresses and a time span."""
    add_list_option(
        group,
        "--function",
        "NAME[@FILE]",
        "Only code of the function NAME (in FILE); may be repeated",
    )
    add_list_option(
        group,
        "--range",
        "START-END",
        "Only code at addresses from START up to, but not including, END (hexadecimal); may be "
        "repeated. "
        "If --function and --range are both given, rtit selects the code that matches either "
        "option",
    )
    add_value_option(
        group,
        "--time",
        "FROM,TO",
        "Only this time span. A whole number is in nanoseconds; a number with a decimal point is "
        "in seconds. If the TSC frequency is unknown, whole numbers are TSC ticks",
    )


def add_head_and_tail_options(group: argparse._ArgumentGroup, rows: str = "instructions") -> None:
    """Declare --head and --tail."""
    add_value_option(
        group, "--head", "N", f"Only the first N {rows} of each thread or CPU", type=parse_count
    )
    add_value_option(
        group, "--tail", "N", f"Only the last N {rows} of each thread or CPU", type=parse_count
    )


def add_timing_option(
    group: argparse._ArgumentGroup, row: str, fields: str = "cycles and frequency"
) -> None:
    """Declare --timing; `row` is what each time belongs to, `fields` are further fields of JSON."""
    add_flag_option(
        group,
        "--timing",
        f"Also show the earliest and the latest possible time of each {row}, in nanoseconds. With "
        f"--json these times are in TSC ticks, and each object also has {fields}",
    )


def add_output_option(group: argparse._ArgumentGroup) -> None:
    """Declare -o."""
    group.add_argument(
        "-o", "--output", metavar="FILE", help="File to write (default: standard output)"
    )


def add_dso_option(group: argparse._ArgumentGroup, default: str) -> None:
    """Declare --dso; `default` describes which binaries are used without it."""
    add_list_option(
        group,
        "--dso",
        "NAME",
        "Only the binary (program or library) with this name or path; may be repeated. The NAME "
        f"'all' selects all binaries (default: {default})",
    )


def add_qemu_env_option(group: argparse._ActionsContainer) -> None:
    """Declare --qemu-env."""
    add_list_option(
        group,
        "--qemu-env",
        "QEMU_NAME[=VALUE]",
        "Set an environment variable for QEMU itself, such as QEMU_CPU=Haswell. Without VALUE, "
        "use the value in rtit's environment. May be repeated. Without this option, rtit passes "
        "the QEMU_* variables of its environment only to the program, and not to QEMU itself",
    )


def add_json_option(
    group: argparse._ArgumentGroup, text: str = "Print one JSON object per line"
) -> None:
    """Declare --json."""
    add_flag_option(group, "--json", text)


def parse_fields(text: str, known: Collection[str]) -> list[str]:
    """Return the field names of a comma-separated list. Raises UsageError."""
    fields = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [f"unknown field {name!r}" for name in fields if name not in known]
    if unknown or not fields:
        message = unknown[0] if unknown else "no field given"
        raise UsageError(f"--fields: {message}", hint=f"fields: {' '.join(known)}")
    return fields


def parse_selection(arguments: argparse.Namespace) -> Selection:
    """Return the part of the recording that the options select. Raises UsageError."""
    from rtit.trace import Selection
    from rtit.trace.tables.selection import parse_indexes, parse_numbers, parse_range, parse_times

    def option_texts(name: str) -> list[str]:
        texts: list[str] = getattr(arguments, name, [])
        return texts

    def option_numbers(name: str) -> tuple[int, ...]:
        return tuple(n for text in option_texts(name) for n in parse_numbers(f"--{name}", text))

    comms = tuple(name for text in option_texts("comm") for name in text.split(","))
    time, index = getattr(arguments, "time", None), getattr(arguments, "index", None)
    for option, values in (("--comm", comms), ("--function", option_texts("function"))):
        if "" in values:
            raise UsageError(f"{option} needs a name")
    return Selection(
        tids=option_numbers("tid"),
        pids=option_numbers("pid"),
        cpus=option_numbers("cpu"),
        comms=comms,
        time=parse_times(time) if time is not None else None,
        ranges=tuple(parse_range(text) for text in option_texts("range")),
        functions=tuple(option_texts("function")),
        indexes=parse_indexes(index) if index is not None else None,
        head=getattr(arguments, "head", None),
        tail=getattr(arguments, "tail", None),
    )


def parse_count(text: str) -> int:
    """Return a number of things, as an argument's type."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


_DEFAULT = "perf.data"
_EXAMPLE_URL = "https://HOST/a.data"
RARE = "the options for JIT code, kernels, virtual machines and raw PT"
ONE_JOB = "1; the output is the same for any N"
MANY_JOBS = "one for each CPU, at most 8; the result is the same for any N"
MANY_RECORDINGS_JOBS = f"{MANY_JOBS}. Several recordings are decoded in N processes, one in each"


def add_file_argument(parser: argparse.ArgumentParser) -> None:
    """Declare FILE and -i."""
    group = parser.add_argument_group()
    group.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help=f"Recording to read: a file, or a URL such as {_EXAMPLE_URL}; - for standard input "
        f"(default: {_DEFAULT})",
    )
    group.add_argument(
        "-i",
        "--input",
        metavar="FILE",
        help="Recording to read; the same as the argument FILE",
        dest="input",
    )


def stream_errata(stream: Stream) -> tuple[str, ...]:
    """Return the errata of the recorded processor, () if it is unknown."""
    from rtit.registers.errata import errata_of

    settings = stream.settings
    cpu = None if isinstance(settings, RtitError) else settings.cpu
    return errata_of(*cpu[:2]) if cpu is not None else ()


def add_image_options(parser: CommandParser) -> None:
    """Declare the options for code: files, and with --help-all JIT code, kernels and guests."""
    group = parser.add_argument_group("Finding code")
    add_value_option(
        group,
        "--symfs",
        "DIR",
        "Read recorded programs and libraries from DIR: DIR/bin/ls in place of /bin/ls",
    )
    add_list_option(
        group,
        "--map",
        "RECORDED=LOCAL",
        "Read the file or directory LOCAL in place of RECORDED, a path that the recording names; "
        "may be repeated",
    )
    add_value_option(
        group, "--buildid-dir", "DIR", "Look up files by build id in DIR, such as ~/.debug"
    )
    add_flag_option(
        group,
        "--debuginfod",
        "Download missing files and symbols from the servers in DEBUGINFOD_URLS",
    )
    group = parser.add_rare_group("JIT code")
    group.add_argument(
        "--jit",
        action="append",
        metavar="PATH",
        help="File with the names of code that a JIT compiler generated (jit-PID.dump or "
        "perf-PID.map), or directory of such files; may be repeated (default: the directory of the "
        "recording, and the file /tmp/perf-PID.map that the recorded program wrote)",
    )
    _add_kernel_options(parser)
    _add_guest_options(parser)


def add_common_reading_options(
    parser: CommandParser, *, jobs: str = ONE_JOB, dask: bool = False
) -> None:
    """Declare the options for code, raw PT and help, as most commands have them; `dask`: of a
    command that takes many recordings.
    """
    add_image_options(parser)
    add_raw_code_options(add_raw_options(parser))
    parser.add_general_options(jobs=jobs, dask=dask, rare=RARE)


def add_max_edges_option(parser: CommandParser, *, calls: bool = False) -> None:
    """Declare --max-edges; `calls`: edges of calls are counted by caller, too."""
    more = ". The limit for pairs of caller and callee is N/2" if calls else ""
    add_value_option(
        parser.add_rare_group("Limits"),
        "--max-edges",
        "N",
        "Keep separate counts for at most N edges (pairs of branch and target) and N sequences of "
        "instructions. If a trace has more than N, the N with the lowest addresses keep separate "
        "counts, and rtit adds up all others in one total. The default of N is 524,288, plus 1 for "
        f"each 1,024 bytes of packets, but not more than 4,194,304{more}",
        default=0,
        type=parse_count,
    )


def _add_kernel_options(parser: CommandParser) -> None:
    group = parser.add_rare_group(
        "Kernel code (not needed for a recording made with perf record --kcore)"
    )
    add_value_option(group, "--kcore", "FILE", "Copy of /proc/kcore")
    add_value_option(
        group, "--kallsyms", "FILE", "Copy of /proc/kallsyms, which has the kernel's symbols"
    )
    add_value_option(group, "--vmlinux", "FILE", "The vmlinux file of the kernel")
    add_value_option(
        group,
        "--kernel-modules",
        "DIR",
        "Directory of kernel modules, such as /lib/modules/RELEASE",
    )


def _add_guest_options(parser: CommandParser) -> None:
    group = parser.add_rare_group("Virtual machines")
    add_value_option(
        group,
        "--guestmount",
        "DIR",
        "Directory with one subdirectory for each virtual machine. The subdirectory has the root "
        "file system of the machine, and its name is the process id of the machine on the host",
    )
    add_list_option(
        group,
        "--guest-process",
        "CR3[,VMCS]=MACHINE/PID",
        "The address space with this CR3 (and VMCS pointer) belongs to process PID of a virtual "
        "machine. MACHINE is the name of the machine's subdirectory in the --guestmount "
        "directory; may be repeated",
    )
    add_value_option(
        group,
        "--guestkallsyms",
        "FILE",
        "Copy of a guest's /proc/kallsyms, for guests without a subdirectory in the --guestmount "
        "directory",
        dest="guest_kallsyms",
    )
    add_value_option(
        group,
        "--guestvmlinux",
        "FILE",
        "The vmlinux file of a guest's kernel",
        dest="guest_vmlinux",
    )
    add_value_option(
        group,
        "--guestmodules",
        "FILE",
        "Copy of a guest's /proc/modules, which lists the addresses of kernel modules",
    )
    add_value_option(group, "--guest-kcore", "FILE", "Copy of a guest's /proc/kcore")
    add_value_option(
        group, "--guest-kernel-modules", "DIR", "Directory of a guest's kernel modules"
    )
    group.add_argument(
        "--guest-tsc",
        action="append",
        metavar="[VMCS:]OFFSET[,MULTIPLIER]",
        help="Convert the times of guests to times of the host. The TSC of a guest is OFFSET + "
        "(TSC of the host) * MULTIPLIER / 2^48. Give this option once for all guests, or "
        "once for each VMCS. With --guest-tsc auto, rtit computes the offsets from TMA packets",
    )


def _kernel_files(arguments: argparse.Namespace, prefix: str = "") -> KernelFiles:
    from rtit.image import KernelFiles

    names = ("kcore", "kallsyms", "vmlinux")
    kcore, kallsyms, vmlinux = (getattr(arguments, prefix + name, None) for name in names)
    return KernelFiles(
        kcore=kcore,
        kallsyms=kallsyms,
        vmlinux=vmlinux,
        modules=getattr(arguments, f"{prefix}kernel_modules", None),
        listed=getattr(arguments, "guestmodules", None) if prefix else None,
    )


def add_files_argument(parser: argparse.ArgumentParser) -> None:
    """Declare FILE... and -i, of a command that adds up recordings."""
    group = parser.add_argument_group()
    group.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="Recordings to read, whose results are added up: files, folders with recordings below "
        f"them, patterns such as 'ci/*.data', or URLs such as {_EXAMPLE_URL}; - for standard input "
        f"(default: {_DEFAULT})",
    )
    group.add_argument(
        "-i",
        "--input",
        metavar="FILE",
        help="Recording to read; the same as the argument FILE",
        dest="input",
    )


def recording_names(arguments: argparse.Namespace) -> Sequence[str | None]:
    """Return the paths of the recordings that the arguments stand for.

    One that is None is raw PT or the default. Raises UsageError and InputError.
    """
    words = [*arguments.files]
    if arguments.input is not None:
        words.append(arguments.input)
        if arguments.files:
            raise UsageError(f"two files given: {words[0]} and -i {words[-1]}")
    if is_raw_requested(arguments) or not words:
        return [words[0] if words else None]  # `open_raw_trace` refuses the word
    if len(words) == 1 and not any((is_url(words[0]), has_magic(words[0]), lexists(words[0]))):
        return words  # `open_trace` checks the other options first
    return find_named_recordings(words)


def find_named_recordings(words: Sequence[str]) -> list[str]:
    """Return the paths of the recordings that words of a command line stand for.

    Raises InputError.
    """
    from rtit.trace.many_recordings import find_recordings

    return find_recordings(words)


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
    one of them, and then calls `check_path_map`.
    """
    from rtit.trace import Trace
    from rtit.trace.recording.decoder_settings import parse_cpu

    if is_raw_requested(arguments):
        return open_raw_trace(arguments)
    model = getattr(arguments, "cpu_model", None)
    path_map = dict(_parse_path_mapping(text) for text in getattr(arguments, "map", []))
    for folder in (getattr(arguments, "symfs", None), getattr(arguments, "buildid_dir", None)):
        if folder is not None and not Path(folder).is_dir():
            raise MissingFileError("no such directory", source=folder)
    guest = _kernel_files(arguments, "guest_")
    trace = Trace(
        input_path(arguments),
        symfs=getattr(arguments, "symfs", None),
        path_map=path_map,
        cpu=parse_cpu(model) if model is not None else None,
        build_id_cache=getattr(arguments, "buildid_dir", None),
        debuginfod=getattr(arguments, "debuginfod", False),
        guest_tsc=guest_tsc(getattr(arguments, "guest_tsc", None)),
        guest=guest if guest.has_files else None,
        guest_mount=getattr(arguments, "guestmount", None),
        guest_processes=getattr(arguments, "guest_process", ()),
        jit=getattr(arguments, "jit", None),
        jobs=parse_jobs(arguments),
        max_counters=getattr(arguments, "max_edges", 0),
        kernel=_kernel_files(arguments),
    )
    try:
        found = _matched_path_maps(trace, path_map)
        if matched is None:
            check_path_map(arguments, found)
        else:
            matched |= found
    except BaseException:
        trace.close()
        raise
    return trace


def _parse_path_mapping(text: str) -> tuple[str, str]:
    recorded, _, local = text.partition("=")
    if not recorded or not local:
        raise UsageError(f"--map {text}: expected RECORDED=LOCAL", hint="example: --map /bin/a=./a")
    return recorded, local


def _matched_path_maps(trace: Trace, path_map: Iterable[str]) -> set[str]:
    """Return the entries of --map that name a recorded file or directory."""
    if not path_map:
        return set()
    paths = {each.path for mappings in trace.mappings().values() for each in mappings}
    return {
        recorded
        for recorded in path_map
        if any(f"{path}/".startswith(f"{recorded.rstrip('/')}/") for path in paths)
    }


def absolute_path(name: str) -> str:
    """Return the absolute path of a file; an URL stays as it is."""
    return name if "://" in name else str(Path(name).absolute())


def with_absolute_paths(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments, with absolute paths in the options of `add_image_options`."""
    found = copy.copy(arguments)
    for name in _PATHS:
        value = getattr(arguments, name, None)
        if value is not None:
            paths = [value] if isinstance(value, str) else value
            paths = [*map(absolute_path, paths)]
            setattr(found, name, paths[0] if isinstance(value, str) else paths)
    if getattr(arguments, "map", None):
        pairs = map(_parse_path_mapping, arguments.map)
        found.map = [f"{recorded}={absolute_path(local)}" for recorded, local in pairs]
    return found


def check_path_map(arguments: argparse.Namespace, matched: Collection[str]) -> None:
    """Raise UsageError for an entry of --map that is not among `matched`."""
    if is_raw_requested(arguments):
        return
    for text in getattr(arguments, "map", []):
        recorded, _ = _parse_path_mapping(text)
        if recorded not in matched:
            raise UsageError(
                f"--map {text}: the recording has no file {recorded}",
                hint="rtit info lists the recorded files",
            )


_CHUNK = 1 << 20
_PATHS = (
    *("symfs", "buildid_dir", "jit", "kcore", "kallsyms", "vmlinux", "kernel_modules"),
    *("guestmount", "guestmodules", "guest_kernel_modules"),
    *("guest_kcore", "guest_kallsyms", "guest_vmlinux"),
)
"""Options with paths, besides --map."""
_RAW_ONLY = (
    *("start", "mtc_freq", "nom_freq", "cpuid_15", "start_time"),
    *("filter", "notnt", "noretcomp"),
)
_RECORDING_ONLY = (
    *("symfs", "map", "buildid_dir", "debuginfod", "jit"),
    *("kcore", "kallsyms", "vmlinux", "kernel_modules"),
    *("guestmount", "guest_process", "guestmodules", "guest_kernel_modules"),
    *("guest_kcore", "guest_kallsyms", "guest_vmlinux"),
)


def add_raw_options(parser: CommandParser) -> argparse._ArgumentGroup:
    """Declare --raw and --cpu-model; return the group of raw PT, which --help-all shows."""
    group = parser.add_rare_group("Raw PT (instead of FILE)")
    add_value_option(
        group,
        "--raw",
        "FILE",
        "File with only the PT packets of one logical processor; - for standard input",
    )
    add_cpu_model_option(group)
    return group


def add_cpu_model_option(group: argparse._ArgumentGroup) -> None:
    """Declare --cpu-model."""
    add_value_option(
        group,
        "--cpu-model",
        "FAMILY/MODEL/STEPPING",
        "Family, model and stepping of the traced processor, such as 6/94/3. rtit works around "
        "the errata of this processor",
    )


def add_raw_code_options(group: argparse._ArgumentGroup) -> None:
    """Declare the options for the code that ran, and for how it was traced."""
    group.add_argument(
        "--image",
        action=_OrderedCodeOption,
        metavar="FILE@ADDRESS",
        help="Map the bytes of FILE at ADDRESS (hexadecimal); may be repeated",
    )
    group.add_argument(
        "--elf",
        action=_OrderedCodeOption,
        metavar="FILE[@BASE]",
        help="Map the code of an ELF file; may be repeated. Where an --elf file and an --image "
        "file overlap, rtit uses the bytes of the --image file",
    )
    add_value_option(
        group,
        "--start",
        "IP[,BITS[,LASTIP]]",
        "Start decoding at the first byte of the trace, with this state: the IP, the code width "
        "(64, 32 or 16 bits), and LastIP. If tracing is disabled at the first byte, give 'off' in "
        "place of an IP. Without --start, decoding starts at the first PSB",
    )
    group.add_argument(
        "--cr3",
        action=_OrderedCodeOption,
        metavar="CR3[,NR[,VMCS]]",
        help="The --image and --elf options after this option apply to the address space with "
        "this CR3, NR bit and VMCS pointer (all hexadecimal). The --image and --elf options before "
        "the first --cr3 apply to every address space that is not given by a --cr3 option",
    )
    add_clock_and_start_options(group)
    add_value_option(
        group,
        "--filter",
        "'filter START/SIZE,...'",
        "Address filter with which the trace was recorded, in the syntax of the Linux kernel",
    )
    add_flag_option(group, "--notnt", "The trace was recorded with DisTNT=1 (no TNT packets)")
    add_flag_option(
        group, "--noretcomp", "The trace was recorded with DisRETC=1 (no RET compression)"
    )


def add_clock_options(group: argparse._ArgumentGroup) -> None:
    """Declare the settings of the clocks."""
    add_value_option(
        group, "--mtc-freq", "N", "Value of IA32_RTIT_CTL.MTCFreq during recording, 0 to 15"
    )
    add_value_option(
        group, "--nom-freq", "N", "Value of MSR_PLATFORM_INFO[15:8] of the processor, 0 to 255"
    )
    add_value_option(
        group,
        "--cpuid-15",
        "EAX,EBX",
        "EAX and EBX of CPUID leaf 15H: the ratio of the TSC to the crystal clock",
    )


def add_clock_and_start_options(group: argparse._ArgumentGroup) -> None:
    """Declare the settings of the clocks, and a time near the beginning."""
    add_clock_options(group)
    add_value_option(
        group,
        "--start-time",
        "TSC",
        "A TSC value near the beginning of the trace. TSC packets lack the 8 highest bits of the "
        "TSC, and rtit takes these bits from this value",
    )


class _OrderedCodeOption(argparse.Action):
    """Collects options whose order matters: `code` has (option, text) of each."""

    def __init__(self, option_strings: list[str], dest: str, **keywords: Any) -> None:
        super().__init__(option_strings, "code", **keywords)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        given = getattr(namespace, "code", None) or []
        namespace.code = [*given, (self.option_strings[0], values)]


def is_raw_requested(arguments: argparse.Namespace) -> bool:
    """Return whether the options name raw PT. Raises UsageError for options of it without --raw."""
    if getattr(arguments, "raw", None) is not None:
        return True
    for option, _ in getattr(arguments, "code", None) or []:
        raise UsageError(f"{option} describes raw PT and needs --raw FILE")
    for name in _names_of_given_options(arguments, _RAW_ONLY):
        raise UsageError(f"{name} describes raw PT and needs --raw FILE")
    return False


def _names_of_given_options(arguments: argparse.Namespace, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if getattr(arguments, name, None) not in (None, False, []):
            yield f"--{name.replace('_', '-')}"


def open_raw_trace(arguments: argparse.Namespace) -> Trace:
    """Open the raw PT that the options name. Raises OSError, UsageError and what `decode` does."""
    from rtit.trace import decode
    from rtit.trace.recording.byte_source import ChunkedSource, FileSource

    if arguments.file is not None or arguments.input is not None:
        named = arguments.file if arguments.file is not None else arguments.input
        raise UsageError(f"two files given: {named} and --raw {arguments.raw}")
    for name in _names_of_given_options(arguments, _RECORDING_ONLY):
        raise UsageError(f"{name} is for recordings and cannot be combined with --raw")
    image, spaces = _build_images(getattr(arguments, "code", None) or [])
    if arguments.raw == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed")
        source: FileSource | ChunkedSource = ChunkedSource(_read_file_in_parts(sys.stdin.buffer))
    elif Path(arguments.raw).exists() and not Path(arguments.raw).is_file():
        source = ChunkedSource(_iterate_file_parts(Path(arguments.raw)))
    else:
        source = FileSource(arguments.raw)
    mtc_freq, nom_freq, cpuid_15 = parse_timing_numbers(arguments)
    return decode(
        source,
        image,
        cpu=getattr(arguments, "cpu_model", None),
        mtc_freq=mtc_freq,
        nom_freq=nom_freq,
        cpuid_15=cpuid_15,
        start_time=number_of_option(arguments, "start_time"),
        guest_tsc=parse_guest_tsc_of_all(getattr(arguments, "guest_tsc", None)),
        ranges=filter_ranges(getattr(arguments, "filter", None)),
        no_tnt=getattr(arguments, "notnt", False),
        no_retcomp=getattr(arguments, "noretcomp", False),
        spaces=spaces,
        jobs=parse_jobs(arguments),
        max_counters=getattr(arguments, "max_edges", 0),
        start=parse_start_state(getattr(arguments, "start", None)),
        title="<stdin>" if arguments.raw == "-" else arguments.raw,
    )


def parse_jobs(arguments: argparse.Namespace) -> int:
    """Return --jobs, 0 if it is not given. Raises UsageError."""
    number: int = getattr(arguments, "jobs", 0)
    if not 0 <= number <= 255:
        raise UsageError(f"--jobs {number}: expected a number from 1 to 255")
    return number


def _build_images(code: list[tuple[str, str]]) -> tuple[Image, dict[SpaceKey, Image]]:
    """Return the code of the default address space, and that of the others."""
    from rtit.image import Image

    main = now = Image()
    spaces: dict[SpaceKey, Image] = {}
    pieces: dict[int, tuple[Image, list[str], list[str]]] = {}
    for option, text in code:
        if option == "--cr3":
            now = spaces.setdefault(_parse_space_key(text), Image())
            continue
        _, elf_files, files = pieces.setdefault(id(now), (now, [], []))
        (elf_files if option == "--elf" else files).append(text)
    for image, elf_files, files in pieces.values():
        for text in elf_files:
            file, _, base = _split_at_address(text)
            image.add_elf(file, _parse_address("--elf", base) if base else None)
        for text in files:
            file, _, address = _split_at_address(text)
            if not address:
                raise UsageError(f"--image {text}: expected FILE@ADDRESS")
            image.add_file(file, _parse_address("--image", address))
    return main, spaces


def _parse_space_key(text: str) -> SpaceKey:
    cr3, *rest = text.split(",")
    try:
        number, more = int(cr3, 16), [int(word, 16) for word in rest]
    except ValueError:
        raise UsageError(f"--cr3 {text}: expected CR3[,NR[,VMCS]] in hexadecimal") from None
    if len(more) > 2:
        raise UsageError(f"--cr3 {text}: expected CR3[,NR[,VMCS]]")
    nr = more[0] if more else 0
    return (number, nr, more[1]) if len(more) > 1 else (number, nr)


def _read_file_in_parts(file: BinaryIO) -> Iterator[bytes]:
    while part := file.read(_CHUNK):
        yield part


def _iterate_file_parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from _read_file_in_parts(file)


def _split_at_address(text: str) -> tuple[str, str, str]:
    """Split FILE@ADDRESS at its last @: file names may contain one."""
    file, at, address = text.rpartition("@")
    return (file, at, address) if file else (text, "", "")


def _parse_address(option: str, text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise UsageError(f"{option} ...@{text}: expected a hexadecimal address") from None


def parse_timing_numbers(arguments: argparse.Namespace) -> tuple[int, int, tuple[int, int]]:
    """Return --mtc-freq, --nom-freq and --cpuid-15 (EAX, EBX), 0 if absent. Raises UsageError."""
    mtc_freq, nom_freq = (number_of_option(arguments, name) for name in ("mtc_freq", "nom_freq"))
    return mtc_freq, nom_freq, _parse_number_pair(getattr(arguments, "cpuid_15", None))


def guest_tsc(texts: list[str] | None) -> GuestTsc:
    """Return --guest-tsc: of all guests, by VMCS, or `auto`. Raises UsageError."""
    from rtit.trace.recording.decoder_settings import NO_SCALING

    if not texts:
        return NO_SCALING
    if texts == ["auto"]:
        return "auto"
    named = [text.partition(":") for text in texts]
    if any(colon for _, colon, _ in named):
        found: dict[int, tuple[int, int]] = {}
        for vmcs, _, text in named:
            pointer = _parse_number("--guest-tsc", vmcs)
            if pointer in found:
                raise UsageError(f"--guest-tsc names VMCS {vmcs} twice: a VMCS has only one offset")
            found[pointer] = _parse_tsc_scaling(text)
        return found
    if len(texts) > 1:
        raise UsageError("--guest-tsc is given twice: use VMCS:OFFSET to distinguish the guests")
    return _parse_tsc_scaling(texts[0])


def parse_guest_tsc_of_all(texts: list[str] | None) -> tuple[int, int]:
    """Return --guest-tsc of raw PT. Raises UsageError."""
    found = guest_tsc(texts)
    if not isinstance(found, tuple):
        raise UsageError(
            "with raw PT, --guest-tsc accepts only OFFSET[,MULTIPLIER], without a VMCS"
        )
    return found


def _parse_tsc_scaling(text: str) -> tuple[int, int]:
    """Parse OFFSET[,MULTIPLIER]; the offset may be negative, it is added modulo 2^64."""
    from rtit.trace.recording.decoder_settings import NO_SCALING

    try:
        numbers = [int(word, 0) for word in text.split(",")]
        offset, multiplier = numbers if len(numbers) == 2 else (*numbers, NO_SCALING[1])
    except ValueError:
        raise UsageError(f"--guest-tsc {text}: expected OFFSET[,MULTIPLIER]") from None
    return offset % (1 << 64), multiplier


def number_of_option(arguments: argparse.Namespace, name: str) -> int:
    """Return the number of the option with this name, 0 if not given. Raises UsageError."""
    text = getattr(arguments, name, None)
    return 0 if text is None else _parse_number(f"--{name.replace('_', '-')}", text)


def filter_ranges(text: str | None) -> list[tuple[int, int]]:
    """Return first and last address of each traced range of --filter. Raises UsageError."""
    from rtit.perfdata.filters import FILTER_EN, parse_address_filters

    if text is None:
        return []
    try:
        found = parse_address_filters(text)
    except PerfDataError:
        found = []
    if not found or any(each.path for each in found):
        raise UsageError(f"--filter {text!r}: expected 'filter START/SIZE,...' with addresses")
    traced = (each for each in found if each.addr_cfg == FILTER_EN)
    return [(each.offset, each.offset + each.size - 1) for each in traced]


def parse_start_state(text: str | None) -> Start | None:
    """Return --start. Raises UsageError."""
    from rtit.trace import Start

    if text is None:
        return None
    words = text.split(",")
    try:
        ip = None if words[0] == "off" else int(words[0], 16)
        bits = int(words[1]) if len(words) > 1 else 64
        last_ip = int(words[2], 16) if len(words) > 2 else 0
    except ValueError:
        ip, bits, last_ip = None, 0, 0
    if bits not in (16, 32, 64) or len(words) > 3:
        raise UsageError(f"--start {text}: expected IP[,BITS[,LASTIP]]")
    return Start(ip, bits, last_ip)


def _parse_number(option: str, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UsageError(f"{option} {text}: expected a number") from None


def _parse_number_pair(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 0
    words = text.split(",")
    if len(words) != 2:
        raise UsageError(f"--cpuid-15 {text}: expected EAX,EBX")
    eax, ebx = (_parse_number("--cpuid-15", word) for word in words)
    return eax, ebx
