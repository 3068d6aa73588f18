"""The XML objects that gdb reads with qXfer packets, as its manual describes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from rtit.text_escaping import name_to_text

if TYPE_CHECKING:
    from rtit.gdb.recorded_program import LoadedFile, RecordedProgram
    from rtit.gdb.thread_path import ThreadPath
    from rtit.trace.recording.decoder_settings import Cpu

_GENERAL_REGISTERS = (
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
_SEGMENT_REGISTERS = ("cs", "ss", "ds", "es", "fs", "gs")
_FPU_REGISTERS = ("fctrl", "fstat", "ftag", "fiseg", "fioff", "foseg", "fooff", "fop")
_CORE_FEATURE = (
    *((name, 64, "int64") for name in _GENERAL_REGISTERS),
    ("rip", 64, "code_ptr"),
    *((name, 32, "int32") for name in ("eflags", *_SEGMENT_REGISTERS)),
    *((f"st{number}", 80, "i387_ext") for number in range(8)),
    *((name, 32, "int") for name in _FPU_REGISTERS),
)
_LINUX_FEATURE = (("orig_rax", 64, "int"),)

_LIBIPT_MODELS = frozenset(
    bytes.fromhex("3d474e4f55565c5e5f666a6c7a7d7e868c8d8e8f96979a9c9ea5a6a7a8bf")
)
"""Models of family 6 with errata that libipt 2.0 knows (`pt_cpu_errata`). gdb does not decode for
any other model.
"""


def target_description() -> str:
    """Return the target description: x86-64 Linux, with the least features that gdb accepts."""
    parts = [
        '<?xml version="1.0"?><!DOCTYPE target SYSTEM "gdb-target.dtd"><target version="1.0">',
        "<architecture>i386:x86-64</architecture><osabi>GNU/Linux</osabi>",
    ]
    for name, registers in (("core", _CORE_FEATURE), ("linux", _LINUX_FEATURE)):
        parts.append(f'<feature name="org.gnu.gdb.i386.{name}">')
        for register, bits, kind in registers:
            parts.append(f'<reg name="{register}" bitsize="{bits}" type="{kind}"/>')
        parts.append("</feature>")
    return "".join([*parts, "</target>"])


def register_values(pc: int | None) -> list[str]:
    """Return the values of all registers by number, in hexadecimal; x for unknown digits."""
    return [
        pc.to_bytes(8, "little").hex() if name == "rip" and pc is not None else "x" * (bits // 4)
        for name, bits, _ in (*_CORE_FEATURE, *_LINUX_FEATURE)
    ]


def thread_list(named: Iterable[tuple[int, str]]) -> str:
    """Return the thread ids and names."""
    rows = (f'<thread id="{tid:x}" name={quoteattr(_xml_text(name))}/>' for tid, name in named)
    return f'<?xml version="1.0"?><threads>{"".join(rows)}</threads>'


def library_list(program: RecordedProgram) -> str:
    """Return the loaded files other than the program.

    gdb identifies libraries by the addresses of their link maps, which are not recorded; numbers
    stand for them.
    """

    def library_element(number: int, each: LoadedFile) -> str:
        dynamic = each.address_of(each.headers.dynamic) if each.headers.dynamic else 0
        return (
            f'<library name={quoteattr(_xml_text(each.path))} lm="{number:#x}" '
            f'l_addr="{each.address_of(0):#x}" lmid="0x0" l_ld="{dynamic:#x}"/>'
        )

    rows = (library_element(16 * number, each) for number, each in enumerate(program.libraries, 2))
    return f'<library-list-svr4 version="1.0" main-lm="0x10">{"".join(rows)}</library-list-svr4>'


def empty_branch_trace() -> str:
    """Return a branch trace without content."""
    return '<!DOCTYPE btrace SYSTEM "btrace.dtd"><btrace version="1.0"></btrace>'


def branch_trace_of_packets(data: bytes, cpu: Cpu | None) -> str:
    """Return a branch trace of PT packets."""
    family, model, stepping = cpu or (0, 0, 0)
    cpu_element = ""
    if family == 6 and model in _LIBIPT_MODELS:
        cpu_element = (
            f'<cpu vendor="GenuineIntel" family="6" model="{model}" stepping="{stepping}"/>'
        )
    return (
        '<!DOCTYPE btrace SYSTEM "btrace.dtd"><btrace version="1.0">'
        f"<pt><pt-config>{cpu_element}</pt-config><raw>{data.hex()}</raw></pt></btrace>"
    )


def branch_trace_of_blocks(path: ThreadPath, pc: int | None, *, is_contiguous: bool) -> str:
    """Return a branch trace of instruction runs, the last first, up to the instruction at `pc`.

    The instruction at `pc` did not execute; with `is_contiguous` it follows the last one in memory.
    A block that ends before it begins shows a gap.
    """
    return "".join(
        [
            '<!DOCTYPE btrace SYSTEM "btrace.dtd"><btrace version="1.0">',
            *_block_elements(path, pc, is_contiguous),
            "</btrace>",
        ]
    )


def _block_elements(path: ThreadPath, pc: int | None, is_contiguous: bool) -> Iterator[str]:
    begins, ends, gap_after = path.start.tolist(), path.last.tolist(), path.gap_after.tolist()
    if pc is not None and is_contiguous:
        ends[-1] = pc
    elif pc is not None:
        yield f'<block begin="{pc:#x}" end="{pc:#x}"/>'
    for row in range(len(begins) - 1, -1, -1):
        if gap_after[row] and row < len(begins) - 1:
            yield '<block begin="0x1" end="0x0"/>'
        yield f'<block begin="{begins[row]:#x}" end="{ends[row]:#x}"/>'


def trace_configuration(trace_format: str, size: int) -> str:
    """Return the trace format, `pt` or `bts`, and its buffer size in bytes."""
    return (
        '<!DOCTYPE btrace-conf SYSTEM "btrace-conf.dtd"><btrace-conf version="1.0">'
        f'<{trace_format} size="{size:#x}"/></btrace-conf>'
    )


def _xml_text(text: str) -> str:
    """Return a text without characters that XML cannot hold."""
    kept = "".join(each if each.isprintable() else "?" for each in name_to_text(text))
    return kept.encode("utf-8", "replace").decode()
