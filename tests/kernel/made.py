"""The generated kernel, its module and its processes: sources, assembled and linked by GNU as and
ld.

The kernel is linked at LINKED and runs at LINKED + MOVED, like a kernel with a random address.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

LINKED = 0xFFFF_FFFF_8100_0000
MOVED = 0x1200_0000
MODULE = 0xFFFF_FFFF_C020_0000
COLD = MODULE + 0x1000
"""Address of the module's second code section."""
NOP = bytes.fromhex("0f1f440000")

KERNEL = """
    .text
    .globl _text, _stext, entry_SYSCALL_64, do_syscall_64, schedule, __switch_to, asm_interrupt
    .globl handle_irq, __fentry__, helper, _etext
_text: _stext:
    nop
    .type entry_SYSCALL_64, @function
entry_SYSCALL_64:
    nop
to_kernel:
    mov %rax, %cr3
    call do_syscall_64
after_call:
    nop
to_user:
    mov %rax, %cr3
leave:
    sysretq
    .type do_syscall_64, @function
do_syscall_64:
    call __fentry__
key:
    .byte 0x0f, 0x1f, 0x44, 0, 0
key_off:
    test %eax, %eax
if_not_switching:
    jz 1f
    call schedule
after_schedule:
1:  test %eax, %eax
if_not_calling:
    jz 2f
    call *%rax
2:  ret
key_on:
    nop
    test %eax, %eax
if_short:
    jz key_off
    nop
    jmp key_off
    .type schedule, @function
schedule:
    endbr64
    call __fentry__
tells_out:
    .rept 8
    nop
    jmp *%rax
    .endr
switch_mm:
    mov %rax, %cr3
    .rept 8
    nop
    jmp *%rax
    .endr
    call __switch_to
after_switch:
    .rept 8
    nop
    jmp *%rax
    .endr
tells_in:
    nop
    ret
    .type __switch_to, @function
__switch_to:
    nop
stacks:
    nop
    ret
    .type asm_interrupt, @function
asm_interrupt:
    nop
    call handle_irq
    iretq
    .type handle_irq, @function
handle_irq:
    nop
    ret
    .type helper, @function
helper:
    xor %eax, %eax
    ret
    .type __fentry__, @function
__fentry__:
    ret
writes:
    ptwrite %rax
    .byte 0xf3, 0x0f, 0xae, 0xe3 # ptwrite %ebx
    ret
idles:
    mwait
    nop
    ret
_etext:
    nop
"""

MODULE_SOURCE = """
    .text
    .globl made_open
    .type made_open, @function
made_open:
    call __fentry__
    nop
    call helper
    call made_cold
    ret
    .section .text.unlikely, "ax"
    .type made_cold, @function
made_cold:
    nop
    jmp helper
"""

USER = """
    .globl _start
_start:
{body}
    syscall
after_syscall:
    nop
    jmp _start
"""
ONE = USER.format(body="nop\n xor %eax, %eax\n nop")
TWO = USER.format(body="xor %eax, %eax\n inc %ecx\n jmp 1f\n nop\n1: nop")
USER_AT = 0x40_1000


@dataclass(frozen=True)
class Built:
    """A linked file, its names with their addresses, and its code by address."""

    path: Path
    symbols: dict[str, int]
    code: dict[int, bytes]


@functools.cache
def kernel() -> Built:
    """Return the linked kernel."""
    return _linked("vmlinux", KERNEL, {".text": LINKED}, {}, "--build-id")


@functools.cache
def module() -> Path:
    """Return the module as a relocatable object."""
    return _object("made", MODULE_SOURCE, ".ko")


@functools.cache
def loaded_module() -> Built:
    """Return the module, linked by GNU ld to its runtime address."""
    known = {name: kernel().symbols[name] + MOVED for name in ("helper", "__fentry__")}
    sections = {".text": MODULE, ".text.unlikely": COLD}
    return _linked("module", MODULE_SOURCE, sections, known)


@functools.cache
def user(name: str) -> Built:
    """Return a program: `one` or `two`."""
    return _linked(name, {"one": ONE, "two": TWO}[name], {".text": USER_AT}, {}, "--build-id")


@functools.cache
def _folder() -> Path:
    if not all(map(shutil.which, ("as", "ld", "nm", "objcopy"))):
        pytest.skip("GNU binutils are not installed")
    folder = tempfile.mkdtemp(prefix="made-kernel-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _object(name: str, source: str, suffix: str = ".o") -> Path:
    written = _folder() / f"{name}.s"
    written.write_text(source)
    made = written.with_suffix(suffix)
    subprocess.run(["as", "-o", made, written], check=True, timeout=300)
    return made


def _linked(
    name: str, source: str, sections: dict[str, int], known: dict[str, int], *options: str
) -> Built:
    made = _folder() / name
    names = [f"--defsym={each}={at:#x}" for each, at in known.items()]
    # a separate section for each, as in modules
    script = _folder() / f"{name}.ld"
    script.write_text(
        "SECTIONS {\n"
        + "".join(f"{each} {at:#x} : {{ *({each}) }}\n" for each, at in sections.items())
        + ".note.gnu.build-id 0x400000 : { *(.note.gnu.build-id) }\n}\n"
    )
    command: list[str | Path] = [
        "ld",
        "-T",
        script,
        "-e",
        "0",
        *names,
        *options,
        "-o",
        made,
        _object(name, source),
    ]
    subprocess.run(command, check=True, timeout=300)
    listed = subprocess.run(
        ["nm", made], check=True, timeout=300, capture_output=True, text=True
    ).stdout
    symbols = {line.split()[2]: int(line.split()[0], 16) for line in listed.splitlines()}
    code = {}
    for each, at in sections.items():
        raw = made.with_suffix(".bin")
        subprocess.run(["objcopy", "-O", "binary", "-j", each, made, raw], check=True, timeout=300)
        code[at] = raw.read_bytes()
    return Built(made, symbols, code)
