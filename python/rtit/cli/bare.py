"""Bare PT and its code as options, instead of a perf.data file; see `rtit.decode`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rtit.cli.bare_values import filter_ranges, guest_tsc_of_all, named_number, numbers, start
from rtit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rtit.image import Image
    from rtit.trace import SpaceKey, Trace

_PART = 1 << 20
_OPTIONS = (
    *("start", "mtc_freq", "nom_freq", "cpuid_15", "start_time"),
    *("filter", "notnt", "noretcomp"),
)
_OF_RECORDINGS = (
    *("symfs", "map", "buildid_dir", "debuginfod", "jit"),
    *("kcore", "kallsyms", "vmlinux", "kernel_modules"),
    *("guestmount", "guest_process", "guestmodules", "guest_kernel_modules"),
    *("guest_kcore", "guest_kallsyms", "guest_vmlinux"),
)


def add_raw(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The packets alone; returns the group of the options."""
    group = parser.add_argument_group("bare PT, instead of a recording")
    group.add_argument(
        "--raw", metavar="FILE", help="the packets of one logical processor; - reads a pipe"
    )
    return group


def add_bare_code(group: argparse._ArgumentGroup) -> None:
    """The code that ran, and how it was traced."""
    group.add_argument(
        "--cr3",
        action=_Code,
        metavar="CR3[,NR[,VMCS]]",
        help="the --image and --elf behind this one are the code of the address space with this "
        "hexadecimal CR3, of a guest if NR is 1, perhaps of the one with this VMCS pointer; those "
        "before the first are for whatever has no other",
    )
    group.add_argument(
        "--image",
        action=_Code,
        metavar="FILE@ADDRESS",
        help="the bytes of this file are at this hexadecimal address; may be repeated",
    )
    group.add_argument(
        "--elf",
        action=_Code,
        metavar="FILE[@BASE]",
        help="the code of this ELF file, its first page at this hexadecimal address; may be "
        "repeated, and goes behind --image where both have something",
    )
    group.add_argument(
        "--start",
        metavar="IP[,BITS[,LASTIP]]",
        help="the first byte begins a packet, and the next instruction is at this hexadecimal "
        "address, or off: tracing is; the code has 64 BITS, or 32 or 16, and IPs are compressed "
        "against LASTIP (default: 0). Without it the first PSB says how things are",
    )
    add_numbers(group)
    group.add_argument(
        "--filter",
        metavar="'filter START/SIZE,...'",
        help="the address filter that it was made with, as the kernel spells it",
    )
    group.add_argument("--notnt", action="store_true", help="made with DisTNT")
    group.add_argument("--noretcomp", action="store_true", help="made with DisRETC")


def add_numbers(group: argparse._ArgumentGroup) -> None:
    """What time depends on."""
    group.add_argument("--mtc-freq", metavar="N", help="IA32_RTIT_CTL.MTCFreq, 0 to 15")
    group.add_argument("--nom-freq", metavar="N", help="MSR_PLATFORM_INFO[15:8], 0 to 255")
    group.add_argument(
        "--cpuid-15", metavar="EAX,EBX", help="CPUID.15H: TSC ticks in a tick of the crystal"
    )
    group.add_argument(
        "--start-time",
        metavar="TSC",
        help="any time near the beginning: TSC packets have 56 bits of it",
    )


class _Code(argparse.Action):
    """Options of which the order counts: `code` has (option, text) of each."""

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


def is_bare(arguments: argparse.Namespace) -> bool:
    """Whether the options tell of bare PT. Raises UsageError if only some of them do."""
    if getattr(arguments, "raw", None) is not None:
        return True
    for option, _ in getattr(arguments, "code", None) or []:
        raise UsageError(f"{option} tells of bare PT: it goes with --raw FILE")
    for name in _given(arguments, _OPTIONS):
        raise UsageError(f"{name} tells of bare PT: it goes with --raw FILE")
    return False


def _given(arguments: argparse.Namespace, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if getattr(arguments, name, None) not in (None, False, []):
            yield f"--{name.replace('_', '-')}"


def is_piped(raw: str) -> bool:
    """Whether what --raw names can be read once alone."""
    return raw == "-" or (Path(raw).exists() and not Path(raw).is_file())


def opened_bare(arguments: argparse.Namespace, cpu: str | None) -> Trace:
    """The trace that the options name. Raises OSError, UsageError and what `decode` does."""
    from rtit.trace import decode
    from rtit.trace.source import Pieces, RawFile

    if arguments.file is not None or arguments.input is not None:
        named = arguments.file if arguments.file is not None else arguments.input
        raise UsageError(f"two files given: {named} and --raw {arguments.raw}")
    for name in _given(arguments, _OF_RECORDINGS):
        raise UsageError(f"{name} tells of a recording: it does not go with --raw")
    image, spaces = _images(getattr(arguments, "code", None) or [])
    if arguments.raw == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed")
        source: RawFile | Pieces = Pieces(_parts(sys.stdin.buffer))
    elif is_piped(arguments.raw):
        source = Pieces(_parts_of(Path(arguments.raw)))
    else:
        source = RawFile(arguments.raw)
    mtc_freq, nom_freq, cpuid_15 = numbers(arguments)
    return decode(
        source,
        image,
        cpu=cpu,
        mtc_freq=mtc_freq,
        nom_freq=nom_freq,
        cpuid_15=cpuid_15,
        start_time=named_number(arguments, "start_time"),
        guest_tsc=guest_tsc_of_all(getattr(arguments, "guest_tsc", None)),
        ranges=filter_ranges(getattr(arguments, "filter", None)),
        no_tnt=getattr(arguments, "notnt", False),
        no_retcomp=getattr(arguments, "noretcomp", False),
        spaces=spaces,
        threads=getattr(arguments, "threads", 0),
        places=getattr(arguments, "places", 0),
        start=start(getattr(arguments, "start", None)),
        title="<stdin>" if arguments.raw == "-" else arguments.raw,
    )


def _images(code: list[tuple[str, str]]) -> tuple[Image, dict[SpaceKey, Image]]:
    """The code that is in no other space, and the other spaces."""
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
                raise UsageError(f"--image takes FILE@ADDRESS, not {text!r}")
            image.add_file(file, _address("--image", address))
    return main, spaces


def _space(text: str) -> SpaceKey:
    cr3, *rest = text.split(",")
    try:
        number, more = int(cr3, 16), [int(word, 16) for word in rest]
    except ValueError:
        raise UsageError(f"--cr3 takes CR3[,NR[,VMCS]] in hexadecimal, not {text!r}") from None
    if len(more) > 2:
        raise UsageError(f"--cr3 takes CR3[,NR[,VMCS]], not {text!r}")
    nr = more[0] if more else 0
    return (number, nr, more[1]) if len(more) > 1 else (number, nr)


def _parts(file: BinaryIO) -> Iterator[bytes]:
    while part := file.read(_PART):
        yield part


def _parts_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from _parts(file)


def _cut(text: str) -> tuple[str, str, str]:
    """At the last @, if an address may follow: names of files have some, too."""
    file, at, address = text.rpartition("@")
    return (file, at, address) if file else (text, "", "")


def _address(option: str, text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise UsageError(f"{option} ...@{text}: {text!r} is no hexadecimal address") from None
