"""Generates a program whose instructions fault at every position of blocks of every kind.

Its arguments are the flags of its handlers (a number) and their action: `s` continues after the
case, `l` jumps there without returning, `m` repairs the registers and returns to the instruction,
up to five times a case. With any third argument another thread starts first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, cycle

BAD = {
    "write": "0xdead0010",
    "far": "1 << 63",
    "page": "0x20000010",
    "divide": "0",
    "unaligned": "cell + 8",
}
INSTRUCTIONS = {
    "write": "movl $1, (%rax)",
    "far": "movl $1, (%rax)",
    "page": "movl $1, (%rax)",
    "divide": "div %ecx",
    "unaligned": "fxsave (%rax)",
    "stop": "hlt",
    "illegal": "ud2",
}
ENTRIES = {
    "taken": "test %r12, %r12\njnz {to}\nnop",
    "not taken": "test %r12, %r12\njz {to}",
    "jump": "jmp {to}\nnop",
    "indirect jump": "lea {to}(%rip), %r10\njmp *%r10\nnop",
    "call": "call {to}\nnop",
    "indirect call": "lea {to}(%rip), %r10\ncall *%r10\nnop",
    "return": "lea {to}(%rip), %r10\npush %r10\nret\nnop",
    "far": "lea {to}(%rip), %r10\nmov %cs, %r11d\npush %r11\npush %r10\nlretq\nnop",
    "system call": "mov $39, %eax\nsyscall",
}
"""How a case's block is reached."""
ENDS = {
    "taken": "test %r12, %r12\njnz {to}",
    "jump": "jmp {to}",
    "indirect jump": "jmp *%r10",
    "call": "call {to}",
    "indirect call": "call *%r10",
    "return": "push %r10\nret",
    "far": "push %r11\npush %r10\nlretq",
}
"""How it goes on, to what is also in R10."""
ROUNDS = {
    "taken": "dec %r14\njnz {to}",
    "indirect jump": "dec %r14\ncmovz %r12, %r10\njmp *%r10",
    "indirect call": "dec %r14\ncmovz %r12, %r10\ncall *%r10",
    "return": "dec %r14\ncmovz %r12, %r10\npush %r10\nret",
    "far": "dec %r14\ncmovz %r12, %r10\npush %r11\npush %r10\nlretq",
}
"""How it goes back to the instruction, which fails each time, for three rounds. A direct jump makes
no packets: a decoder cannot know how often it was taken before the failure.
"""
BRANCHES = {
    "jmp *(%rax)": "",
    "call *(%rax)": "",
    "ret": "mov %rax, %rsp",
    "call *%r10": "mov %rax, %rsp",
}
"""Branches that fail themselves; two for want of a stack."""


@dataclass(frozen=True)
class Case:
    """The instruction at the label `name` fails; `executed` is how often it does not, where
    handlers do not mend, and where they do.
    """

    name: str
    code: str
    executed: tuple[int, int]
    needs_stack: bool = False
    """A handler has to have one of its own."""


def cases() -> list[Case]:
    """Each kind of failure at the start of a block and inside, with each kind of end."""
    found = []
    numbers = count()
    entries = cycle(ENTRIES)

    def add(**words: object) -> None:
        found.append(_case(f"fault_{next(numbers)}", next(entries), **words))  # type: ignore[arg-type]

    for kind, instruction in INSTRUCTIONS.items():
        for before in ("", "nop\nnop\n"):
            for end in ENDS.values():
                mended = int(kind in BAD)
                add(kind=kind, code=before, fails=instruction, end=end, executed=(0, mended))
            for end in ROUNDS.values():
                for late in (False, True)[: 1 + (kind in BAD)]:
                    # a first round is for nothing where a register is what fails
                    free = int(late)
                    executed = (free, 3 if kind in BAD else 0)
                    add(
                        kind=kind,
                        code=before,
                        fails=instruction,
                        end=end,
                        executed=executed,
                        again=True,
                        late=late,
                    )
    for branch, before in BRANCHES.items():
        for kind in ("write", "far"):
            needs = bool(before)
            add(
                kind=kind,
                code=f"{before}\nnop\n",
                fails=branch,
                end="",
                executed=(0, not needs),
                needs_stack=needs,
            )
    return found


def _case(
    name: str,
    entry: str,
    *,
    kind: str,
    code: str,
    fails: str,
    end: str,
    executed: tuple[int, int],
    again: bool = False,
    late: bool = False,
    needs_stack: bool = False,
) -> Case:
    register = "%rcx" if kind == "divide" else "%rax"
    good = "$1" if kind == "divide" else "$cell"
    reach = ENTRIES[entry].format(to=f"{name}_block")
    # RAX and RCX do not survive a system call
    values = f"mov $cell, %rax\nmov $1, %ecx\nmov %r15, {register}"
    if late:
        values += f"\nmov {good}, {register}"
    setting = f"{values}\n{reach}" if entry != "system call" else f"{reach}\n{values}"
    to = name if again else f"{name}_after"
    aims = f"lea {to if end else f'{name}_after'}(%rip), %r10\nmov %cs, %r11d\n"
    restore = f"mov %r15, {register}\n" if again and kind in BAD else ""
    first, last = (aims, restore) if again or not end else ("", aims)
    body = f"""{name}_run:
push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15
lea {name}_after(%rip), %r12
mov %rsp, %r13
mov $3, %r14d
movabs ${BAD.get(kind, 0)}, %r15
mov %r12, cell(%rip)
xor %edx, %edx
{setting}
{name}_block: {first}{code}
{name}: {fails}
{last}{end.format(to=to)}
{name}_after: mov %r13, %rsp
pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp
ret
"""
    return Case(name, body, executed, needs_stack)


def assembly(found: list[Case]) -> str:
    """What `faulting.c` lacks: the cases and a table of them."""
    code = "".join(f".globl {case.name}\n{case.code}" for case in found)
    rows = "".join(f".quad {case.name}_run, {int(case.needs_stack)}\n" for case in found)
    table = f".globl all, end_of_all\nall:\n{rows}end_of_all:\n"
    return f".section .note.GNU-stack\n.text\n{code}.data\n{table}"
