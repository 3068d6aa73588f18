"""Options for raw PT and its code, in place of a perf.data file; see `rtit.decode`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rtit.cli.parser import CommandParser
from rtit.errors import PerfDataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rtit.image import Image
    from rtit.trace import SpaceKey, Start, Trace
    from rtit.trace.time.guest_time import GuestTsc

_CHUNK = 1 << 20
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


def add_raw(parser: CommandParser) -> argparse._ArgumentGroup:
    """Declare --raw and --cpu-model; return the group of raw PT, which --help-all shows."""
    group = parser.add_rare_group("Raw PT (instead of FILE)")
    group.add_argument(
        "--raw",
        metavar="FILE",
        help="Packets of one logical processor, without perf.data around them; - for standard "
        "input",
    )
    add_cpu_model(group)
    return group


def add_cpu_model(group: argparse._ArgumentGroup) -> None:
    """Declare --cpu-model."""
    group.add_argument(
        "--cpu-model",
        metavar="FAMILY/MODEL/STEPPING",
        help="The processor that was traced, such as 6/94/3; its errata are taken into account",
    )


def add_raw_code(group: argparse._ArgumentGroup) -> None:
    """Declare the options for the code that ran, and for how it was traced."""
    group.add_argument(
        "--image",
        action=_Code,
        metavar="FILE@ADDRESS",
        help="Map FILE at ADDRESS (hexadecimal); may be repeated",
    )
    group.add_argument(
        "--elf",
        action=_Code,
        metavar="FILE[@BASE]",
        help="Map the code of an ELF file; may be repeated; --image takes precedence",
    )
    group.add_argument(
        "--start",
        metavar="IP[,BITS[,LASTIP]]",
        help="Decode from the first byte, at this IP ('off': tracing is disabled there), in code "
        "of 64, 32 or 16 BITS, with LastIP LASTIP (default: synchronize at the first PSB)",
    )
    group.add_argument(
        "--cr3",
        action=_Code,
        metavar="CR3[,NR[,VMCS]]",
        help="The following --image and --elf belong to this address space (hexadecimal); those "
        "before the first --cr3 belong to all others",
    )
    add_numbers(group)
    group.add_argument(
        "--filter",
        metavar="'filter START/SIZE,...'",
        help="The address filter of the trace, as the kernel spells it",
    )
    group.add_argument("--notnt", action="store_true", help="The trace was made with DisTNT")
    group.add_argument("--noretcomp", action="store_true", help="The trace was made with DisRETC")


def add_numbers(group: argparse._ArgumentGroup) -> None:
    """Declare the numbers that time depends on."""
    group.add_argument("--mtc-freq", metavar="N", help="IA32_RTIT_CTL.MTCFreq, 0 to 15")
    group.add_argument("--nom-freq", metavar="N", help="MSR_PLATFORM_INFO[15:8], 0 to 255")
    group.add_argument(
        "--cpuid-15", metavar="EAX,EBX", help="CPUID.15H: TSC ticks in a tick of the crystal"
    )
    group.add_argument(
        "--start-time",
        metavar="TSC",
        help="A TSC value near the beginning; TSC packets hold the low 56 bits",
    )


class _Code(argparse.Action):
    """Collects options whose order counts: `code` has (option, text) of each."""

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


def is_raw(arguments: argparse.Namespace) -> bool:
    """Return whether the options name raw PT. Raises UsageError for options of it without --raw."""
    if getattr(arguments, "raw", None) is not None:
        return True
    for option, _ in getattr(arguments, "code", None) or []:
        raise UsageError(f"{option} describes raw PT: it needs --raw FILE")
    for name in _given(arguments, _RAW_ONLY):
        raise UsageError(f"{name} describes raw PT: it needs --raw FILE")
    return False


def _given(arguments: argparse.Namespace, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if getattr(arguments, name, None) not in (None, False, []):
            yield f"--{name.replace('_', '-')}"


def is_piped(raw: str) -> bool:
    """Return whether the file of --raw can be read only once."""
    return raw == "-" or (Path(raw).exists() and not Path(raw).is_file())


def open_raw_trace(arguments: argparse.Namespace) -> Trace:
    """Open the raw PT that the options name. Raises OSError, UsageError and what `decode` does."""
    from rtit.trace import decode
    from rtit.trace.recording.byte_source import ChunkedSource, FileSource

    if arguments.file is not None or arguments.input is not None:
        named = arguments.file if arguments.file is not None else arguments.input
        raise UsageError(f"two files given: {named} and --raw {arguments.raw}")
    for name in _given(arguments, _RECORDING_ONLY):
        raise UsageError(f"{name} is for a recording, not for --raw")
    image, spaces = _images(getattr(arguments, "code", None) or [])
    if arguments.raw == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed")
        source: FileSource | ChunkedSource = ChunkedSource(_parts(sys.stdin.buffer))
    elif is_piped(arguments.raw):
        source = ChunkedSource(_parts_of(Path(arguments.raw)))
    else:
        source = FileSource(arguments.raw)
    mtc_freq, nom_freq, cpuid_15 = numbers(arguments)
    return decode(
        source,
        image,
        cpu=getattr(arguments, "cpu_model", None),
        mtc_freq=mtc_freq,
        nom_freq=nom_freq,
        cpuid_15=cpuid_15,
        start_time=named_number(arguments, "start_time"),
        guest_tsc=guest_tsc_of_all(getattr(arguments, "guest_tsc", None)),
        ranges=filter_ranges(getattr(arguments, "filter", None)),
        no_tnt=getattr(arguments, "notnt", False),
        no_retcomp=getattr(arguments, "noretcomp", False),
        spaces=spaces,
        jobs=jobs(arguments),
        max_counters=getattr(arguments, "max_edges", 0),
        start=start(getattr(arguments, "start", None)),
        title="<stdin>" if arguments.raw == "-" else arguments.raw,
    )


def jobs(arguments: argparse.Namespace) -> int:
    """Return --jobs, 0 if it is not given. Raises UsageError."""
    number: int = getattr(arguments, "jobs", 0)
    if not 0 <= number <= 255:
        raise UsageError(f"--jobs {number}: expected a number from 1 to 255")
    return number


def _images(code: list[tuple[str, str]]) -> tuple[Image, dict[SpaceKey, Image]]:
    """Return the code of the default address space, and that of the others."""
    from rtit.image import Image

    main = now = Image()
    spaces: dict[SpaceKey, Image] = {}
    pieces: dict[int, tuple[Image, list[str], list[str]]] = {}
    for option, text in code:
        if option == "--cr3":
            now = spaces.setdefault(_space(text), Image())
            continue
        _, elf_files, files = pieces.setdefault(id(now), (now, [], []))
        (elf_files if option == "--elf" else files).append(text)
    for image, elf_files, files in pieces.values():
        for text in elf_files:
            file, _, base = _cut(text)
            image.add_elf(file, _address("--elf", base) if base else None)
        for text in files:
            file, _, address = _cut(text)
            if not address:
                raise UsageError(f"--image {text}: expected FILE@ADDRESS")
            image.add_file(file, _address("--image", address))
    return main, spaces


def _space(text: str) -> SpaceKey:
    cr3, *rest = text.split(",")
    try:
        number, more = int(cr3, 16), [int(word, 16) for word in rest]
    except ValueError:
        raise UsageError(f"--cr3 {text}: expected CR3[,NR[,VMCS]] in hexadecimal") from None
    if len(more) > 2:
        raise UsageError(f"--cr3 {text}: expected CR3[,NR[,VMCS]]")
    nr = more[0] if more else 0
    return (number, nr, more[1]) if len(more) > 1 else (number, nr)


def _parts(file: BinaryIO) -> Iterator[bytes]:
    while part := file.read(_CHUNK):
        yield part


def _parts_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from _parts(file)


def _cut(text: str) -> tuple[str, str, str]:
    """Split FILE@ADDRESS at its last @: file names may contain one."""
    file, at, address = text.rpartition("@")
    return (file, at, address) if file else (text, "", "")


def _address(option: str, text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise UsageError(f"{option} ...@{text}: expected a hexadecimal address") from None


def numbers(arguments: argparse.Namespace) -> tuple[int, int, tuple[int, int]]:
    """Return --mtc-freq, --nom-freq and --cpuid-15 (EAX, EBX), 0 if absent. Raises UsageError."""
    mtc_freq, nom_freq = (named_number(arguments, name) for name in ("mtc_freq", "nom_freq"))
    return mtc_freq, nom_freq, _pair(getattr(arguments, "cpuid_15", None))


def guest_tsc(texts: list[str] | None) -> GuestTsc:
    """Return --guest-tsc: of all guests, by VMCS, or `auto`. Raises UsageError."""
    from rtit.trace.recording.settings import NO_SCALING

    if not texts:
        return NO_SCALING
    if texts == ["auto"]:
        return "auto"
    named = [text.partition(":") for text in texts]
    if any(colon for _, colon, _ in named):
        found: dict[int, tuple[int, int]] = {}
        for vmcs, _, text in named:
            pointer = _number("--guest-tsc", vmcs)
            if pointer in found:
                raise UsageError(f"--guest-tsc {vmcs} is given twice: a VMCS has one offset")
            found[pointer] = _scaling(text)
        return found
    if len(texts) > 1:
        raise UsageError("--guest-tsc is given twice: use VMCS:OFFSET to name the guests")
    return _scaling(texts[0])


def guest_tsc_of_all(texts: list[str] | None) -> tuple[int, int]:
    """Return --guest-tsc of raw PT. Raises UsageError."""
    found = guest_tsc(texts)
    if not isinstance(found, tuple):
        raise UsageError(
            "--guest-tsc by VMCS is for recordings: for raw PT give OFFSET[,MULTIPLIER]"
        )
    return found


def _scaling(text: str) -> tuple[int, int]:
    """Parse OFFSET[,MULTIPLIER]; the offset may be negative, it is added modulo 2^64."""
    from rtit.trace.recording.settings import NO_SCALING

    try:
        numbers = [int(word, 0) for word in text.split(",")]
        offset, multiplier = numbers if len(numbers) == 2 else (*numbers, NO_SCALING[1])
    except ValueError:
        raise UsageError(f"--guest-tsc {text}: expected OFFSET[,MULTIPLIER]") from None
    return offset % (1 << 64), multiplier


def named_number(arguments: argparse.Namespace, name: str) -> int:
    """Return the number of the option with this name, 0 if not given. Raises UsageError."""
    text = getattr(arguments, name, None)
    return 0 if text is None else _number(f"--{name.replace('_', '-')}", text)


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


def start(text: str | None) -> Start | None:
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


def _number(option: str, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UsageError(f"{option} {text}: expected a number") from None


def _pair(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 0
    words = text.split(",")
    if len(words) != 2:
        raise UsageError(f"--cpuid-15 {text}: expected EAX,EBX")
    eax, ebx = (_number("--cpuid-15", word) for word in words)
    return eax, ebx
