"""Writes the first inputs of fuzzing to fuzz/corpus: generated ones, and real traces.

    python fuzz/python/seeds.py

The real ones come from ../shared/traces beside the repository, where it exists. ELF files need a C
compiler.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import file_seeds

from rtit.capture.events import EVENT_RECORD, EventKind, EventLog
from rtit.packets import PSB, encode
from rtit.packets.table import DECLARATION_BY_NAME
from rtit.perfdata import Writer

FUZZ = Path(__file__).resolve().parent.parent
TRACES = FUZZ.parent.parent / "shared" / "traces"
LARGEST = 200_000
Seeds = Iterator[tuple[str, str, bytes]]
"""(corpus, name, bytes)."""

CODE = bytes.fromhex(
    "7502 e806000000 ffd0 74f5 ebf3"  # jne +2; call; call rax; je back; jmp back
    "90 f3a4 c3 ff20 0f05 cc 8ed0 0f22d8 c3"
)
BASES = {0x1000: 0, 0x100000: 1 << 6}
"""Address of the code, and its option bits in an input of target `flow`."""


EXIT = struct.pack("<IHH", 4, 0, 56)
"""Header of the record as `Writer` writes it."""
FORMATS = (("dwarf5", "-gdwarf-5"), ("dwarf4", "-gdwarf-4"), ("zlib", "-g", "-gz=zlib"))


def stream(base: int) -> bytes:
    """Return a stream through `CODE` and back, with a PSB+ and timing packets."""
    return b"".join(
        (
            *(PSB, encode("TSC", tsc=0x900), encode("TMA", ctc=0x40, fast_counter=2)),
            *(encode("CBR", ratio=10), encode("MODE.Exec", csl=1, csd=0, iflag=1)),
            *(encode("FUP", ip_bytes=6, payload=base), encode("PSBEND")),
            *(encode("TNT", bits="TNT"), encode("TIP", ip_bytes=1, payload=base & 0xFFFF)),
            *(encode("MTC", ctc=9), encode("CYC", cycles=77), encode("TNT.64", bits="TN" * 20)),
            *(encode("TSC", tsc=0x2000), encode("OVF"), encode("FUP", ip_bytes=6, payload=base)),
            *(encode("TNT", bits="NNNT"), encode("TIP.PGD", ip_bytes=0), encode("PAD") * 3),
            *(encode("TIP.PGE", ip_bytes=6, payload=base), encode("TNT", bits="TTTTTT")),
        )
    )


def flow_input(options: int, code: bytes, packets: bytes) -> bytes:
    """Return an input for target `flow`."""
    return struct.pack("<BH", options, len(code)) + code + packets


def packet_seeds() -> Seeds:
    """Yield every row of the packet table, alone and after a PSB and a BBP."""
    rows = [row.header.ljust(row.size + 8, b"\0") for row in DECLARATION_BY_NAME.values()]
    for number, raw in enumerate(rows):
        yield "packet", f"row-{number}", raw
    yield "packet", "rows", PSB + PSB.join(rows)
    yield "packet", "block", b"\x02\x63\x04" + b"".join(rows)


def flow_seeds() -> Seeds:
    """Yield one stream with all options."""
    for base, bits in BASES.items():
        for options in range(32):
            yield "flow", f"made-{bits | options}", flow_input(bits | options, CODE, stream(base))
        yield "packet", f"made-{bits}", stream(base)


def clock_seeds() -> Seeds:
    """Yield sequences of timing packets with settings that differ in one byte."""
    rows = (encode("MTC", ctc=at // 2) + encode("CYC", cycles=at * 40) for at in range(2, 40))
    ratios = encode("CBR", ratio=9) + encode("CYC", cycles=300) + encode("CBR", ratio=12)
    sleep = encode("MWAIT", hints=1, ext=0) + encode("EXSTOP", ip=0)
    packets = stream(0x1000) + b"".join(rows) + ratios + sleep + encode("PAD") + stream(0x1000)
    for at in range(8):
        for value in (0, 1, 2, 4, 9, 64, 255):
            choices = bytearray([0, 3, 10, 0, 0, 6, 30, 1])
            choices[at] ^= value
            yield "clock", f"made-{at}-{value}", bytes(choices) + packets


def x86_seeds() -> Seeds:
    """Yield some instructions with prefixes, and invalid bytes."""
    others = ("c5f877", "62f17c4858c0", "d5a90000000000000000", "f3480f1efa", "668ed0", "0f0fc190")
    long = ("66" * 14 + "d5009090", "d5" + "3e" * 14 + "0f00" * 4)
    for number, raw in enumerate((CODE, *map(bytes.fromhex, others + long))):
        yield "x86", f"made-{number}", struct.pack("<Q", 0x1000) + raw
        yield "x86", f"high-{number}", struct.pack("<q", -3) + raw


def reusable_decoder_seeds() -> Seeds:
    """Yield two streams with code before, between and after them, in every combination of
    options.
    """
    base = 0x1000
    code, other = (struct.pack("<BB", 0, len(each)) + each for each in (CODE, CODE[::-1]))
    packets = stream(base)
    part = struct.pack("<BB", 1, len(packets) // 4 + 1) + packets + bytes(4 - len(packets) % 4)
    for options in range(16):
        yield (
            "reusable_decoder",
            f"made-{options}",
            bytes([options]) + code + part + other + part + code + part,
        )


def unit_seeds() -> Seeds:
    """Yield each kind of event with settings that differ in one byte."""
    events = b"".join(bytes([kind, 1, 2, kind, 40, 1, 2, 3, 4, 5, 6, 9]) for kind in range(1, 22))
    resumed = bytes([12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) + events + events
    for at in range(16):
        for value in (0, 1, 2, 4, 12, 48, 64, 255):
            ctl = struct.pack("<Q", 0x2608 | 1 << 1)
            choices = bytearray(ctl + bytes([0, 90, 0, 64, 0, 0, 0, 0]))
            choices[at] ^= value
            yield "unit", f"made-{at}-{value}", bytes(choices) + resumed


def symbol_name_seeds() -> Seeds:
    """Yield symbol names."""
    for number, name in enumerate(
        (
            "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
            "_RNvC6_123foo3bar",
            "_RINvNtC3std3mem8align_ofINtNtB2_3vec3VecjEE",
            "_ZNSt6vectorIiSaIiEE9push_backERKi",
            "_ZZN1AIXadL_Z1fvEEE1gEvENKUlT_E_clIiEEDaS_",
        )
    ):
        yield "demangle", f"made-{number}", name.encode()


def truth_seeds() -> Seeds:
    """Yield a complete file of one thread with one instruction, and its start."""
    mask = (1 << 64) - 1
    x = (0x1000 * 0xBF58476D1CE4E5B9) & mask
    value = x ^ x >> 32
    header = b"rtit-truth\0\0" + struct.pack("<I", 1)
    thread = struct.pack("<IIII", 1, 8, 7, 7)
    runs = struct.pack("<IIII QIIQ", 2, 32, 7, 1, 0x1000, 1, 0, value)
    check = struct.pack("<IIII QQ", 3, 24, 7, 0, 1, value)
    end = struct.pack("<IIII QQ", 4, 24, 7, 0, 1, value)
    yield "truth", "whole", header + thread + runs + check + end + struct.pack("<II", 5, 0)
    yield "truth", "begun", header + thread + runs


def elf_seeds(folder: Path) -> Seeds:
    """Yield small shared objects of both ELF classes with symbols, a PLT and a build id."""
    compiler = shutil.which("cc")
    if compiler is None:
        return
    source = folder / "seed.c"
    source.write_text("int outside(void); int inside(void) { return outside() + 1; }\n")
    plain = ["-shared", "-nostdlib", "-fPIC", "-O1", "-Wl,--build-id", "-Wl,-z,noseparate-code"]
    for name, *flags in (("64",), ("32", "-m32"), ("stripped", "-s"), ("object", "-c")):
        made = folder / name
        command = [compiler, *plain, *flags, "-o", str(made), str(source)]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            yield "elf", name, made.read_bytes()
    for name, *flags in FORMATS:
        made = folder / name
        command = [compiler, *plain, *flags, "-o", str(made), str(source)]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            yield "lines", name, made.read_bytes()


def compressed(inner: bytes) -> Iterator[tuple[str, bytes]]:
    """Return both kinds of compressed records with records in an uncompressed Zstandard frame."""
    block = (len(inner) << 3 | 1).to_bytes(3, "little") + inner
    frame = bytes.fromhex("28b52ffd20") + bytes([len(inner)]) + block
    yield "compressed-81", struct.pack("<IHH", 81, 0, 8 + len(frame)) + frame
    padded = struct.pack("<Q", len(frame)) + frame + bytes(-len(frame) % 8)
    yield "compressed-83", struct.pack("<IHH", 83, 0, 8 + len(padded)) + padded


def recording_seeds(folder: Path) -> Seeds:
    """Yield a perf.data file and a log of events, each with every kind of record that rtit
    writes.
    """
    path = folder / "perf.data"
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3", cmdline=["rtit"]) as out:
        out.comm(7, 7, 1, "name", True)
        out.mmap2(7, 7, 2, 0x401000, 0x1000, 0, 5, 2, 8, 1, 4711, 0, "/bin/true")
        out.itrace_start(7, 7, 2)
        out.text_poke(7, 7, 3, 0x1000, CODE)
        out.aux(7, 7, 4, 0, 64)
        out.auxtrace(7, 7, stream(0x1000), None, 0x3000)
        out.fork(8, 7, 8, 7, 5)
        out.exit(8, 7, 8, 7, 6)
        out.flush()
        killed = path.read_bytes()
        yield "perfdata", "killed", killed
        for title, record in compressed(killed[killed.rindex(EXIT) :] * 2):
            # the header has the size of all records
            size = struct.unpack_from("<Q", killed, 48)[0] + len(record)
            whole = killed[:48] + struct.pack("<Q", size) + killed[56:] + record
            yield "perfdata", title, whole
        out.close(build_ids={"/bin/true": bytes(20)})
    yield "perfdata", "made", path.read_bytes()

    mapping = struct.pack("<QIIIIQQ", 0, 5, 2, 8, 1, 4711, 0) + b"/bin/true\0"
    blobs = {EventKind.MMAP: mapping, EventKind.CODE: CODE}
    log = EventLog()
    for count in (0, 1, 3):
        kinds = list(EventKind) * count
        rows = [
            EVENT_RECORD.pack(kind, 1, 2, 7, 0x1000, 0x1002, 3, i) for i, kind in enumerate(kinds)
        ]
        log.append(b"".join(rows), [blobs.get(kind, b"text") for kind in kinds])
    log.save(folder / "log")
    yield "events", "made", (folder / "log").read_bytes()


def real_trace_seeds() -> Seeds:
    """Yield real traces and recordings of other tools."""
    cases = TRACES / "libipt-cases"
    index = json.loads((cases / "index.json").read_text()) if cases.is_dir() else []
    for case in index:
        packets = (cases / f"{case['name']}.pt").read_bytes()
        code = (cases / f"{case['name']}.bin").read_bytes()
        yield "packet", case["name"], packets
        bits = BASES.get(int(case["image_base"], 16))
        if bits is not None and len(code) < len(packets) + 512:
            yield "flow", case["name"], flow_input(bits, code, packets)
    for path in sorted(TRACES.glob("*/*")):
        if path.suffix == ".data" and path.stat().st_size < LARGEST:
            yield "perfdata", path.name, path.read_bytes()
        elif path.suffix == ".elf" or path.name == "hello":
            yield "elf", path.name, path.read_bytes()
        elif path.name == "pt.bin":
            yield "packet", path.name, path.read_bytes()


def main() -> None:
    """Write all seeds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        makers = (
            packet_seeds(),
            flow_seeds(),
            clock_seeds(),
            x86_seeds(),
            symbol_name_seeds(),
            truth_seeds(),
            reusable_decoder_seeds(),
            unit_seeds(),
        )
        counts: dict[str, int] = {}
        others = (
            elf_seeds(folder),
            recording_seeds(folder),
            file_seeds.pack_seeds(folder, CODE, stream(0x1000)),
            real_trace_seeds(),
        )
        for maker in (
            *makers,
            file_seeds.support_file_seeds(CODE, stream(0x1000)),
            file_seeds.option_value_seeds(),
            *others,
        ):
            for corpus, title, data in maker:
                path = FUZZ / "corpus" / corpus / title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                counts[corpus] = counts.get(corpus, 0) + 1
    print(", ".join(f"{corpus} {count}" for corpus, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
