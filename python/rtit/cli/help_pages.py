"""The pages of `rtit help` that belong to no command."""

from __future__ import annotations

from collections.abc import Callable

from rtit.cli.commands import GROUPS

_HEAD = """usage: rtit COMMAND [options]

Record every branch of a program as Intel Processor Trace, and show what it executed.
"""

_TAIL = """Other:
  help          Show the help of a command, or a page: exit-codes, fields, json
  completion    Print the completion script of a shell

options:
  -h, --help     Show this help
  -V, --version  Show the version

'rtit help COMMAND' shows the options of a command. Exit codes: 'rtit help exit-codes'.
First steps:  rtit record -- ls  &&  rtit report"""

EXIT_CODES = """Commands that read a recording:
  0  success
  1  failure, or: verify or diff found a difference, lint found violations, stat exceeded its limit
  2  invalid command line
  3  incomplete: part of the trace was lost or could not be decoded; standard error says what

record and stat -- PROGRAM:
  the exit code of the program (128+N if signal N ended it), or
  1 if the program returned 0 and stat exceeded its limit, or could not check the limit
  2 invalid command line   125 rtit failed   126 program not executable   127 program not found"""

RECORD_JSON = """rtit record --json FILE writes one line with one JSON object:
  file, command            the recording, and the command line
  backend, why             the back end, and why it was chosen
  exit_code                exit code of the program
  ended, signal            how the program ended, in words; the number of its signal, or null
  fault                    null, or an object with ip, address and si_code
  executed_instructions, executed_branches
                           numbers of all executed instructions and branches
  traced_instructions, traced_branches
                           numbers of instructions and branches in the trace; null for a snapshot,
                           or if the file became full
  partial                  whether a filter, window, size limit or snapshot left out part of the run
  threads                  number of threads
  pt_bytes                 bytes of PT in the file
  stopped                  why recording stopped early, or null
  warnings                 list of warnings, each one sentence
With --backend perf, the numbers of instructions, branches and threads are null."""

FIELDS = {
    "ip": "address of the instruction",
    "tid": "thread",
    "time": "time in ns when this sequence of instructions began: an estimate, and a lower bound",
    "sym": "function, and the offset in the function",
    "asm": "disassembled instruction",
    "pid": "process",
    "comm": "name of the thread",
    "cpu": "CPU",
    "dso": "file that contains the instruction",
    "insn": "bytes of the instruction",
    "insnlen": "length of the instruction in bytes",
    "bits": "code width: 64, 32 or 16",
    "in_tx": "whether the instruction ran in a transaction",
    "earliest": "earliest time at which the instruction can have run",
    "latest": "latest time at which the instruction can have run",
    "cycles": "core cycles counted so far",
    "freq": "core frequency in MHz; if the recording has no clock, cycles per TSC tick",
    "ipc": "instructions per cycle",
    "guest_pid": "process in the virtual machine",
    "guest_tid": "thread in the virtual machine",
    "guest_comm": "name of the thread in the virtual machine",
}


def format_overview_page() -> str:
    """Return the page of `rtit --help`."""
    lines = [_HEAD]
    for title, commands in GROUPS.items():
        lines.append(f"{title}:")
        lines += [f"  {name:<13} {command.summary}" for name, command in commands.items()]
        lines.append("")
    lines.append(_TAIL)
    return "\n".join(lines)


def format_fields_page() -> str:
    """Return the page of `rtit help fields`."""
    from rtit.views.field_names import BRANCH_FIELDS, NATIVE_FIELDS

    lines = ["Fields of rtit instructions --fields LIST that are fast to print:"]
    lines += [f"  {name:<11} {FIELDS[name]}" for name in NATIVE_FIELDS]
    lines += ["", "Fields that are slow to print:"]
    lines += [f"  {name:<11} {text}" for name, text in FIELDS.items() if name not in NATIVE_FIELDS]
    lines += ["", f"Fields of rtit branches --fields LIST: {', '.join(BRANCH_FIELDS)}"]
    return "\n".join(lines)


PAGES: dict[str, Callable[[], str]] = {
    "": format_overview_page,
    "help": format_overview_page,
    "exit-codes": lambda: EXIT_CODES,
    "fields": format_fields_page,
    "json": lambda: RECORD_JSON,
}
