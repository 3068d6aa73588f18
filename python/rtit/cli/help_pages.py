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

'rtit help COMMAND' shows the options of a command; 'rtit help exit-codes' lists the exit codes.
First steps:  rtit record -- ls  &&  rtit report"""

EXIT_CODES = """Exit codes of commands that read a recording:
  0  success
  1  failure, or a negative result: verify or diff found a difference, lint found a violation
     of a rule, or stat counted more instructions than --fail-above allows
  2  invalid command line
  3  incomplete result: part of the trace was lost or could not be decoded; a message on
     standard error describes that part

Exit codes of 'rtit record -- PROGRAM' and 'rtit stat -- PROGRAM':
  the exit code of the program, or 128+N if signal N ended the program; other exit codes are:
  1    the program returned 0, but stat counted more instructions than --fail-above allows,
       or stat could not check the --fail-above limit because some counts are missing
  2    invalid command line
  125  rtit failed
  126  the program is not executable
  127  the program was not found"""

RECORD_JSON = """rtit record --json FILE writes one line with one JSON object:
  file, command            path of the recording; command line of the program
  backend, why             name of the back end; why rtit chose this back end
  exit_code                exit code of the program
  ended                    how the program ended, in words
  signal                   number of the signal that ended the program, or null
  fault                    ip, address and si_code of the fault that ended the program, or null
  executed_instructions, executed_branches
                           numbers of executed instructions and branches, traced or not
  traced_instructions, traced_branches
                           numbers of instructions and branches in the trace; null for a snapshot,
                           and if recording stopped at a size limit
  partial                  whether part of the run is not in the trace because of a filter,
                           --start-at, --stop-at, a size limit or a snapshot
  threads                  number of threads
  pt_bytes                 number of bytes of PT packets in the file
  stopped                  why recording stopped before the program ended, or null
  warnings                 list of warnings, one sentence each
With --backend perf, the numbers of instructions, branches and threads are null."""

FIELDS = {
    "ip": "address of the instruction",
    "tid": "thread id",
    "time": "estimated time in ns at which the contiguous sequence with this instruction began",
    "sym": "name of the function, and offset of the instruction in the function",
    "asm": "disassembled instruction",
    "pid": "process id",
    "comm": "name of the thread",
    "cpu": "CPU that executed the instruction",
    "dso": "file that contains the instruction",
    "insn": "bytes of the instruction",
    "insnlen": "length of the instruction in bytes",
    "bits": "code width: 64, 32 or 16",
    "in_tx": "whether the instruction ran in a transaction",
    "cpl": "privilege level: 3 for programs, 0 for the kernel",
    "cr3": "address of the page table: CR3 without its lowest five bits, 0 if unknown",
    "index": "position of the instruction in its thread, from 0 on, as --index takes it",
    "function": "name of the function, or of the file where no function is known",
    "file": "source file, from DWARF",
    "line": "line in the source file",
    "earliest": "earliest time at which the instruction can have run",
    "latest": "latest time at which the instruction can have run",
    "cycles": "number of core cycles that CYC packets have counted since the start of the trace",
    "freq": "core frequency in MHz, or cycles per TSC tick if the TSC frequency is unknown",
    "ipc": "instructions per cycle",
    "guest_pid": "process id in the virtual machine",
    "guest_tid": "thread id in the virtual machine",
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
    from rtit.views.field_names import BLOCK_FIELDS, BRANCH_FIELDS, NATIVE_FIELDS

    lines = ["Fields of 'rtit instructions --fields LIST' that rtit prints fast:"]
    lines += [f"  {name:<11} {FIELDS[name]}" for name in NATIVE_FIELDS]
    lines += ["", "Fields of 'rtit instructions --fields LIST' that rtit prints slowly:"]
    lines += [f"  {name:<11} {text}" for name, text in FIELDS.items() if name not in NATIVE_FIELDS]
    lines += [
        "",
        f"Fields of 'rtit branches --fields LIST': {', '.join(BRANCH_FIELDS)}",
        f"Fields of 'rtit blocks --fields LIST': {', '.join(BLOCK_FIELDS)}",
        "index, function, file and line are those of the source of a branch, and of the first",
        "instruction of a block.",
    ]
    return "\n".join(lines)


PAGES: dict[str, Callable[[], str]] = {
    "": format_overview_page,
    "help": format_overview_page,
    "exit-codes": lambda: EXIT_CODES,
    "fields": format_fields_page,
    "json": lambda: RECORD_JSON,
}
