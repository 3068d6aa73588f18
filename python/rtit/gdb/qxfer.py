"""The documents that gdb reads with qXfer, and which its manual describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from rtit.readable import as_text

if TYPE_CHECKING:
    from rtit.gdb.path import Path
    from rtit.gdb.program import Loaded, Program
    from rtit.trace.recording.settings import Cpu


_GENERAL = (
    "rax",
    "rbx",
    "rcx",
    "rdx",
    "rsi",
    "rdi",
    "rbp",
    "rsp",
    *(f"r{n}" for n in range(8, 16)),
)
_SEGMENTS = ("cs", "ss", "ds", "es", "fs", "gs")
_FPU = ("fctrl", "fstat", "ftag", "fiseg", "fioff", "foseg", "fooff", "fop")
_CORE = (
    *((name, 64, "int64") for name in _GENERAL),
    ("rip", 64, "code_ptr"),
    *((name, 32, "int32") for name in ("eflags", *_SEGMENTS)),
    *((f"st{number}", 80, "i387_ext") for number in range(8)),
    *((name, 32, "int") for name in _FPU),
)
_LINUX = (("orig_rax", 64, "int"),)

_MODELS = frozenset(
    bytes.fromhex("3d474e4f55565c5e5f666a6c7a7d7e868c8d8e8f96979a9c9ea5a6a7a8bf"),
)
"""Models of family 6 whose errata libipt 2.0 knows (`pt_cpu_errata`): gdb refuses to decode for a
processor that its libipt does not know.
"""


def features() -> str:
    """The target description: x86-64 under Linux, as little of it as gdb takes."""
    parts = [
        '<?xml version="1.0"?><!DOCTYPE target SYSTEM "gdb-target.dtd"><target version="1.0">',
        "<architecture>i386:x86-64</architecture><osabi>GNU/Linux</osabi>",
    ]
    for name, registers in (("core", _CORE), ("linux", _LINUX)):
        parts.append(f'<feature name="org.gnu.gdb.i386.{name}">')
        for register, bits, kind in registers:
            parts.append(f'<reg name="{register}" bitsize="{bits}" type="{kind}"/>')
        parts.append("</feature>")
    return "".join([*parts, "</target>"])


def registers(pc: int | None) -> list[str]:
    """All of them by number, in hexadecimal; x stands for what is not known."""
    return [
        pc.to_bytes(8, "little").hex() if name == "rip" and pc is not None else "x" * (bits // 4)
        for name, bits, _ in (*_CORE, *_LINUX)
    ]


def threads(named: Iterable[tuple[int, str]]) -> str:
    """Thread ids and names."""
    rows = (f'<thread id="{tid:x}" name={quoteattr(_xml(name))}/>' for tid, name in named)
    return f'<?xml version="1.0"?><threads>{"".join(rows)}</threads>'


def libraries(program: Program) -> str:
    """The files that are loaded beside the program. gdb tells them apart by their link maps, whose
    addresses nobody knows: numbers stand for them.
    """

    def row(number: int, each: Loaded) -> str:
        dynamic = each.at(each.headers.dynamic) if each.headers.dynamic else 0
        return (
            f'<library name={quoteattr(_xml(each.path))} lm="{number:#x}" '
            f'l_addr="{each.at(0):#x}" lmid="0x0" l_ld="{dynamic:#x}"/>'
        )

    rows = (row(16 * number, each) for number, each in enumerate(program.libraries, 2))
    return f'<library-list-svr4 version="1.0" main-lm="0x10">{"".join(rows)}</library-list-svr4>'


def no_trace() -> str:
    """Nothing (more) to read."""
    return '<!DOCTYPE btrace SYSTEM "btrace.dtd"><btrace version="1.0"></btrace>'


def packets(data: bytes, cpu: Cpu | None) -> str:
    """PT as it is."""
    family, model, stepping = cpu or (0, 0, 0)
    known = ""
    if family == 6 and model in _MODELS:
        known = f'<cpu vendor="GenuineIntel" family="6" model="{model}" stepping="{stepping}"/>'
    return (
        '<!DOCTYPE btrace SYSTEM "btrace.dtd"><btrace version="1.0">'
        f"<pt><pt-config>{known}</pt-config><raw>{data.hex()}</raw></pt></btrace>"
    )


def blocks(path: Path, pc: int | None, *, goes_on: bool) -> str:
    """The runs of instructions one by one, the last first, up to the instruction at `pc`, which
    did not run and follows the last that did in memory if `goes_on`. A block that ends before it
    begins stands for a gap.
    """
    return "".join(
        [
            '<!DOCTYPE btrace SYSTEM "btrace.dtd"><btrace version="1.0">',
            *_blocks(path, pc, goes_on),
            "</btrace>",
        ]
    )


def _blocks(path: Path, pc: int | None, goes_on: bool) -> Iterator[str]:
    begins, ends, broken = path.start.tolist(), path.last.tolist(), path.broken.tolist()
    if pc is not None and goes_on:
        ends[-1] = pc
    elif pc is not None:
        yield f'<block begin="{pc:#x}" end="{pc:#x}"/>'
    for row in range(len(begins) - 1, -1, -1):
        if broken[row] and row < len(begins) - 1:
            yield '<block begin="0x1" end="0x0"/>'
        yield f'<block begin="{begins[row]:#x}" end="{ends[row]:#x}"/>'


def configuration(form: str, size: int) -> str:
    """`pt` or `bts`, and the size of its buffer in bytes."""
    return (
        '<!DOCTYPE btrace-conf SYSTEM "btrace-conf.dtd"><btrace-conf version="1.0">'
        f'<{form} size="{size:#x}"/></btrace-conf>'
    )


def _xml(text: str) -> str:
    """Without what no XML can hold."""
    kept = "".join(each if each.isprintable() else "?" for each in as_text(text))
    return kept.encode("utf-8", "replace").decode()
