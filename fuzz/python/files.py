"""Readers of files used with a recording, of option values, and of debugger requests.

Each reader takes the input and a folder for its files; the first byte selects the kind of file or
option, the rest is the content.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from generated_inputs import CODES, Choices, packets, require

from rtit.errors import RtitError

if TYPE_CHECKING:
    from rtit.gdb.target import GdbTarget

KERNEL = 0xFFFF_FFFF_8100_0000


def _kallsyms(path: Path) -> None:
    from rtit.image.kernel.kallsyms import read_kallsyms

    found = read_kallsyms(path)
    require(found == sorted(found, key=lambda row: row.address), "not in order")


def _modules(path: Path) -> None:
    from rtit.image.kernel.kallsyms import read_modules

    require(all(size > 0 for _, _, size in read_modules(path)), "a module without bytes")


def _kcore(path: Path) -> None:
    from rtit.image.kernel.kcore import Kcore

    core = Kcore(str(path))
    for address in (KERNEL, KERNEL - 1, KERNEL + 0xFFF, (1 << 64) - 1, 0):
        require(len(core.read(address, 64)) <= 64, "more than was asked for")
        core.has_byte_at(address)
        core.read_page(address & ~0xFFF)
    for _ in core.read_pages_core():
        pass


def _vmlinux(path: Path) -> None:
    from rtit.image.kernel.vmlinux import Vmlinux
    from rtit.image.mapped_files import Files

    Vmlinux(str(path), Files()).load_offset_of_symbol("_text", KERNEL)


def _module(path: Path) -> None:
    from rtit.image.kernel.kallsyms import Kallsym
    from rtit.image.kernel.modules import ModuleObject

    module = ModuleObject(path.read_bytes(), str(path))
    repr(module.build_id)
    own = [Kallsym(KERNEL + 0x100, True, "inside", "seed")]
    for address, code in module.link_code(KERNEL, own, {"outside": KERNEL + 0x2000}):
        require(address >> 47 == KERNEL >> 47, f"code at {address:#x}")
        require(len(code) <= path.stat().st_size, "more code than file")


def _jitdump(path: Path) -> None:
    from rtit.image.jit_files import read_jitdump

    found = read_jitdump(str(path))
    for number in range(min(len(found), 50)):
        require(len(found.code_of_function(number)) <= path.stat().st_size, "more code than file")
    repr(found.functions_with_code if len(found) < 50 else found.incomplete)


def _map(path: Path) -> None:
    from rtit.image.jit_files import read_perf_map

    require(all(size > 0 for _, size, _ in read_perf_map(str(path))), "a function without bytes")


def _headers(path: Path) -> None:
    from rtit.image.mapped_files import load_bias, open_program_file

    load_bias(open_program_file(path), 0, 0x1000, 0x40_0000)


def _program(path: Path) -> None:
    from rtit.capture.qemu.qemu_process import check_elf

    with path.open("rb") as file:
        check_elf("program", file)


def _pack(path: Path) -> None:
    from rtit.trace import Trace

    with Trace(path) as trace:
        for stream in trace.streams:
            repr(stream.ledger())


def _pack_list(path: Path) -> None:
    from rtit.trace.recording.packs import PackManifest

    try:
        found = PackManifest.decode(path.read_bytes())
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return  # what a pack answers all of these
    require(PackManifest.decode(found.encode_manifest()) == found, "another list than was written")


def _baselines(path: Path) -> None:
    from rtit.testing.baseline import Baselines, compare_counts

    counts = Baselines(path.parent / "test_seed.py")
    counts.path.parent.mkdir(exist_ok=True)
    counts.path.write_bytes(path.read_bytes())
    one, two = counts.get("test"), counts.get("test[2]")
    if one is not None and two is not None:
        require(
            (compare_counts(one, one, 0), compare_counts(two, two, 0)) == (None, None),
            "not as it was",
        )
        compare_counts(one, two, 0.01)


def _griffin(path: Path) -> None:
    from rtit.perfdata.griffin_log import read_griffin_log

    data = path.read_bytes()
    log = read_griffin_log(memoryview(data), str(path))
    for tid in log.packets:
        require(sum(map(len, log.thread_packets(tid))) <= len(data), "more packets than file")


def _guest_maps(path: Path) -> None:
    from rtit.image.guest_processes import read_processes

    maps = path.parent / "guests" / "42" / "proc" / "7" / "maps"
    maps.parent.mkdir(parents=True, exist_ok=True)
    maps.write_bytes(path.read_bytes())
    (process,) = read_processes(["0x1000=42/7"], path.parent / "guests")
    require(all(start < end for start, end, _, _ in process.rows), "a mapping without bytes")


def _maps(path: Path) -> None:
    _convert("--raw", str(_packets(path.parent)), "--maps", str(path))


def _raw(path: Path) -> None:
    maps = path.parent / "maps"
    maps.write_text("00401000-00402000 r-xp 00000000 08:02 17 /bin/true\n")
    _convert("--raw", str(path), "--maps", str(maps))


def _packets(folder: Path) -> Path:
    from rtit.packets import encode

    path = folder / "packets"
    path.write_bytes(encode("PSB") + encode("TSC", tsc=9) + encode("PSBEND"))
    return path


def _convert(*words: str) -> None:
    """Run `rtit convert`; its output must be readable."""
    from rtit.cli.commands import command_parser
    from rtit.cli.move import convert
    from rtit.trace import Trace

    output = Path(words[1]).parent / "joined.data"
    argv = [*words, "-o", str(output)]
    with redirect_stdout(io.StringIO()):
        convert.run(command_parser("convert").parse_args(argv))
    with Trace(output) as trace:
        require(len(trace.streams) == 1, "not one thread")


FILES: dict[str, Callable[[Path], None]] = {
    "kallsyms": _kallsyms,
    "modules": _modules,
    "kcore": _kcore,
    "vmlinux": _vmlinux,
    "module": _module,
    "jitdump": _jitdump,
    "map": _map,
    "headers": _headers,
    "program": _program,
    "pack": _pack,
    "pack-list": _pack_list,
    "baselines": _baselines,
    "griffin": _griffin,
    "guest-maps": _guest_maps,
    "maps": _maps,
    "raw": _raw,
}
"""By the number of the row: add new rows at the end, or the meaning of seed inputs changes."""


def read_file(data: bytes, folder: Path) -> None:
    """Read one of `FILES`."""
    path = folder / "file"
    path.write_bytes(data[1:])
    list(FILES.values())[(data or b"\0")[0] % len(FILES)](path)


def _options(text: str) -> None:
    from rtit.capture.options import PtOptions

    found = PtOptions.parse(text)
    require(PtOptions.from_config(found.attr_config).attr_config == found.attr_config, "other bits")


def _filters(text: str, program: Path) -> None:
    from rtit.capture.filters import parse_filters
    from rtit.perfdata.filters import format_address_filters, parse_address_filters

    found = parse_filters(text, program=program)
    form = format_address_filters(found)
    require(form is None or parse_address_filters(form) == found, f"{form!r} is read otherwise")


def _window(text: str, program: Path) -> None:
    from rtit.capture.request import parse_window

    start, _, stop = text.partition("\n")
    parse_window(start, stop, program=program)


def _kernel_form(text: str) -> None:
    from rtit.perfdata.filters import parse_address_filters

    for each in parse_address_filters(text):
        each.addresses(0x1000, 0, 0x1000, "/bin/true")


def _raw_settings(text: str) -> None:
    from rtit.cli import options
    from rtit.image import Image
    from rtit.trace import decode

    words = (text.split("\n") + [""] * 3)[:8]
    start = options.parse_start_state(words[0] or None)
    ranges = options.filter_ranges(words[1] or None)
    guest = options.parse_guest_tsc_of_all([words[2]] if words[2] else None)
    decode(b"", Image(), start=start, ranges=ranges, guest_tsc=guest)
    options.guest_tsc(list(filter(None, words[3:])))


def _register(text: str) -> None:
    from rtit.registers.parse_names import find_profile, find_register, parse_address, parse_value

    for ask in (find_profile, find_register, parse_value, parse_address):
        try:
            ask(text)
        except RtitError as error:
            require(bool(str(error)), "an error without a message")


def _within(text: str) -> None:
    from rtit.testing.baseline import parse_tolerance

    require(0 <= parse_tolerance(text) < 1e9, "no share")


OPTION_VALUES = ("options", "filters", "window", "kernel-form", "bare", "register", "within")


def read_option_values(data: bytes, folder: Path) -> None:
    """Parse the value of one of `OPTION_VALUES`."""
    program = folder / "program"
    if not program.exists():
        program.write_bytes(b"no program")
    text = data[1:].decode(errors="replace").replace("\0", "")[:500]
    readers: tuple[Callable[[str], None], ...] = (
        _options,
        partial(_filters, program=program),
        partial(_window, program=program),
        _kernel_form,
        _raw_settings,
        _register,
        _within,
    )
    readers[(data or b"\0")[0] % len(readers)](text)


@cache
def _target(folder: Path) -> GdbTarget:
    from rtit.gdb.target import GdbTarget
    from rtit.perfdata import Writer
    from rtit.trace import Trace

    path, code = folder / "gdb.data", folder / "code"
    code.write_bytes(CODES[0])
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        out.comm(7, 7, 1, "code", True)
        out.mmap2(7, 7, 2, 0x1000, 0x1000, 0, 5, 2, 8, 1, 4711, 0, str(code))
        out.itrace_start(7, 7, 2)
        out.auxtrace(7, 7, packets(Choices(b"\1\30\1\2" * 12), 0x1000), None, 0x3000)
    return GdbTarget(Trace(path), max_instructions=1 << 20, report=lambda _: None)


def read_gdb(data: bytes, folder: Path) -> None:
    """Serve requests of a debugger, framed unless they begin with a tab; each must have a reply."""
    from rtit.gdb.protocol import GdbSession, frame_packet

    session = GdbSession(_target(folder))
    for line in data.split(b"\n")[:40]:
        raw = line[:1] == b"\t"
        answer = session.feed_bytes(line[1:] if raw else frame_packet(line))
        require(raw or bool(answer) or session.closed, "no answer")
        require(len(answer) < 1 << 20, "an answer that gdb does not take")
        if session.closed:
            break


READERS = {"files": read_file, "option_values": read_option_values, "gdb": read_gdb}
