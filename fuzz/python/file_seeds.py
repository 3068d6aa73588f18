"""Seeds for `files.py`: files used with a recording, and option values."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

from files import FILES, OPTION_VALUES

from rtit.perfdata import Writer
from rtit.trace import Trace
from rtit.trace.recording.pack_writer import write_pack

Seeds = Iterator[tuple[str, str, bytes]]
"""(corpus, name, bytes)."""


def support_file_seeds(code: bytes, packets: bytes) -> Seeds:
    """Yield files of kernels, JIT-compiled code, virtual machines and tests."""

    def seed(kind: str, title: str, data: bytes) -> tuple[str, str, bytes]:
        return "files", f"{kind}-{title}", bytes([list(FILES).index(kind)]) + data

    yield seed("kallsyms", "made", b"ffffffff81000000 T _text\nffffffffc0000010 t f\t[module]\n")
    yield seed("modules", "made", b"seed 16384 0 - Live 0xffffffffc0000000\n")
    yield seed("map", "made", b"1000 20 first\n0x2000 10 second one\nzz 1 no\n")
    maps = b"00401000-00402000 r-xp 00001000 08:02 17 /bin/true\n"
    maps += b"7f0000000000-7f0000001000 r--p 0 0:0 0 /x\n"
    yield seed("guest-maps", "made", maps)
    yield seed("maps", "made", maps)
    yield seed("raw", "made", packets)
    head = struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, 7, 1, 0)
    load = (
        struct.pack("<IIQIIQQQQ", 0, 56 + 5 + 28, 3, 7, 7, 0x1000, 0x1000, len(code), 1)
        + b"code\0"
        + code
    )
    move = struct.pack("<IIQIIQQQQQ", 1, 64, 4, 7, 7, 0x1000, 0x1000, 0x2000, len(code), 1)
    yield seed("jitdump", "made", head + load + move + load)
    counts = {
        "test": {"instructions": 9, "functions": {"f": 4, "g": 5}},
        "test[2]": {"instructions": 0, "functions": {}},
    }
    yield seed("baselines", "made", json.dumps(counts).encode())
    core = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 4, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    core += struct.pack("<IIQQQQQQ", 1, 5, 120, 0xFFFF_FFFF_8100_0000, 0, 64, 64, 4096) + bytes(64)
    yield seed("kcore", "made", core)
    for kind, number in (("headers", 3), ("program", 2), ("vmlinux", 2)):
        yield seed(kind, "made", core[:16] + struct.pack("<H", number) + core[18:])
    bodies = (
        (1, struct.pack("<QQ", 7, 5) + b"name\0"),
        (4, struct.pack("<QQQ", 7, 0x1000, len(code)) + code),
        (2, struct.pack("<QQ", 7, 8)),
        (6, struct.pack("<QQQQ", 7, 7, 9, 9)),
        (0, struct.pack("<QQQQ", 7, 8, 1, len(packets)) + packets),
    )
    items = (struct.pack("<II", kind, 8 + len(body)) + body for kind, body in bodies)
    yield seed("griffin", "made", struct.pack("<II", 0x51C0FFEE, 1) + b"".join(items))


def pack_seeds(folder: Path, code: bytes, packets: bytes) -> Seeds:
    """Yield a pack, its manifest, and relocatable objects."""
    file, data, packed = folder / "code", folder / "packed.data", folder / "pack.zip"
    file.write_bytes(code * 20)
    with Writer(data, config=0x2601, cpuid="GenuineIntel,6,94,3") as out:
        out.comm(7, 7, 1, "name", True)
        out.mmap2(7, 7, 2, 0x1000, 0x1000, 0, 5, 2, 8, 1, 4711, 0, str(file))
        out.itrace_start(7, 7, 2)
        out.auxtrace(7, 7, packets, None, 0x3000)
    with Trace(data) as trace, packed.open("wb") as pack_file:
        write_pack(trace, pack_file)
    numbers = list(FILES)
    yield "files", "pack-made", bytes([numbers.index("pack")]) + packed.read_bytes()
    with zipfile.ZipFile(packed) as archive:
        said = archive.read("rtit-pack.json")
    yield "files", "pack-list-made", bytes([numbers.index("pack-list")]) + said
    source, made = folder / "module.c", folder / "module.o"
    source.write_text("int outside(void); int inside(void) { return outside() + 1; }\n")
    if (
        shutil.which("cc")
        and not subprocess.run(
            ["cc", "-c", "-fno-pic", "-mcmodel=kernel", "-o", str(made), str(source)], check=False
        ).returncode
    ):
        yield "files", "module-made", bytes([numbers.index("module")]) + made.read_bytes()


def option_value_seeds() -> Seeds:
    """Yield option values, and requests of a debugger."""
    rows = {
        "options": (
            "intel_pt/cyc=1,mtc_period=3,psb_period=3,noretcomp/u",
            "intel_pt//u",
            "intel_pt/config=0x2601/",
        ),
        "filters": (
            "filter 0x1000/0x20@/bin/true,tracestop 0x3000/0x10@/bin/true",
            'filter "f" #1 @ file',
            "filter *",
            "start 1 @ x",
        ),
        "window": ("50000\n+10000", "main\nf@file", "1_000\n2_000"),
        "kernel-form": (
            "filter 0x1000/0x20@/bin/true",
            "filter 0x1000/16 stop 1",
            "tracestop 1/2,filter 3/4",
        ),
        "bare": (
            "1000,32,2000\nfilter 0x1000/0x20\n-5,0x1000000000000\n1:2,3\n4:5",
            "off",
            "\n\n0x10\nauto",
        ),
        "register": ("IA32_RTIT_CTL", "skylake", "0x2401", "0b101", "cpuid.14h"),
        "within": ("0.1%", "nan%", "1e400%"),
    }
    for name, texts in rows.items():
        for number, text in enumerate(texts):
            yield (
                "option_values",
                f"{name}-{number}",
                bytes([OPTION_VALUES.index(name)]) + text.encode(),
            )
    lines = (
        b"qSupported:xmlRegisters=i386\nQStartNoAckMode\nQbtrace:pt\nqXfer:btrace:read:all:0,1000",
        b"Hg7\nHc-1\nT7\ng\np10\nm1000,20\nG00\nP10=00\nZ0,1000,1\nvCont;c\n\t$x#00\n\t\3",
        b"qfThreadInfo\nqsThreadInfo\nqC\n?\nqRcmd,68656c70\nqXfer:features:read:target.xml:0,ffff\n!",
    )
    for number, requests in enumerate(lines):
        yield "gdb", f"made-{number}", requests
