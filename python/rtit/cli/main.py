"""The `rtit` command: runs the command that its first word names, and turns errors into a sentence
and an exit code.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rtit.cli import output, signals
from rtit.cli.commands import COMMANDS, command_parser
from rtit.cli.parser import CommandParser, suggest_similar_word
from rtit.errors import (
    MissingFileError,
    MissingRecordingError,
    NotPerfDataError,
    RecordError,
    RtitError,
    UsageError,
)
from rtit.remote_files import is_url

_GC_THRESHOLD = 100_000
_OTHERS = ("help", "completion")
_PROGRAM_NOT_FOUND = 127


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    # A reader that closes the pipe (`rtit packets | head`) ends rtit quietly, as any Unix tool.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    words = sys.argv[1:] if argv is None else argv
    if argv is None:
        # Nearly all objects are modules, which are no garbage.
        gc.set_threshold(_GC_THRESHOLD)
        atexit.register(gc.freeze)
    try:
        _open_missing_standard_files()
        name = words[0] if words else ""
        if name in COMMANDS:
            return _run_command(name, words[1:], whole_process=argv is None)
        return _run_without_command(name, words[1:])
    except KeyboardInterrupt:
        number = signal.SIGINT
    except signals.EndedBySignal as ended:
        number = signal.Signals(ended.number)
    except BrokenPipeError:
        number = signal.SIGPIPE
    except OSError as error:
        # Help or the version could not be written; a command names itself.
        output.discard_unwritable_output()
        output.print_error("", error.strerror or str(error))
        return 1
    return signals.exit_by_signal(number)


def _run_without_command(name: str, rest: Sequence[str]) -> int:
    """Print help, the version or a completion script, or report an unknown command."""
    if name in ("-V", "--version"):
        from rtit import __version__

        return _print_page(f"rtit {__version__}")
    if name in ("", "-h", "--help", "--help-all", "help"):
        return _print_help(rest[0] if name == "help" and rest else "") or (0 if name else 2)
    if name == "completion":
        from rtit.cli.completion import print_script

        return print_script(rest)
    near = suggest_similar_word(name, [*COMMANDS, *_OTHERS, "--help", "--version"], quote="'")
    kind = "option" if name.startswith("-") else "command"
    next_step = "rtit --help lists the commands"
    output.print_error("", f"unknown {kind} {name!r}{near}", next_step)
    return 2


def _print_help(topic: str) -> int:
    from rtit.cli import help_pages
    from rtit.cli.completion import completion_parser

    if topic in COMMANDS or topic == "completion":
        parser = command_parser(topic) if topic in COMMANDS else completion_parser()
        parser.hide_rare_options()
        parser.print_help()
        return 0
    if topic not in help_pages.PAGES:
        near = suggest_similar_word(topic, [*COMMANDS, *help_pages.PAGES], quote="'")
        next_step = "rtit help COMMAND, or one of: exit-codes, fields, json"
        output.print_error("help", f"no page {topic!r}{near}", next_step)
        return 2
    return _print_page(help_pages.PAGES[topic]())


def _print_page(text: str) -> int:
    for line in text.splitlines():
        output.print_line(line)
    output.flush_output()
    return 0


def _run_command(name: str, words: Sequence[str], *, whole_process: bool) -> int:
    """Run a command. Raises whatever `main` turns into a signal. `whole_process`: nothing else
    runs in this process.
    """
    parser = command_parser(name)
    arguments = parser.parse_args(words)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    runs_program = name == "record" or getattr(arguments, "program", None) is not None
    failure = 125 if runs_program else 1  # 1 may be the exit code of the program
    try:
        if whole_process:
            _set_up_process(runs_program=runs_program)
        # A command that runs a program handles signals itself.
        with nullcontext() if runs_program else signals.handle_signals():
            code = _load_and_run(name, arguments)
            output.flush_output()
        return code
    except RtitError as error:
        output.print_error(name, str(error), _suggest_next_step(error, parser, arguments))
        return failure if error.exit_code == 1 else error.exit_code
    except OSError as error:
        if isinstance(error, BrokenPipeError) and not runs_program:
            raise
        output.discard_unwritable_output()
        where = f"{error.filename}: " if error.filename else ""
        missing = error.filename if isinstance(error, FileNotFoundError) else None
        output.print_error(name, f"{where}{error.strerror or error}", _similar_file(missing))
        return failure
    finally:
        # Restore the caller's signal mask, without the signals that came for `record`.
        ours = signal.pthread_sigmask(signal.SIG_BLOCK, ()) - mask
        while ours and signal.sigtimedwait(ours, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _load_and_run(name: str, arguments: argparse.Namespace) -> int:
    from rtit.cli.commands import load_command

    return int(load_command(name).run(arguments))


def _suggest_next_step(
    error: RtitError, parser: CommandParser, arguments: argparse.Namespace
) -> str:
    """Return the line below an error: a remedy, or the usage of the command."""
    if isinstance(error, MissingFileError) and (similar := _similar_file(error.filename)):
        return similar
    if isinstance(error, RecordError) and error.exit_code == _PROGRAM_NOT_FOUND:
        program = next(word for word in arguments.program if word != "--")
        return _similar_file(program, executable=True) if "/" in program else error.hint
    if isinstance(error, MissingRecordingError) and not is_url(error.filename):
        return "make a recording first:  rtit record -- PROGRAM"
    if isinstance(error, NotPerfDataError) and "--raw" in parser.option_names():
        return "to read raw PT, use --raw"
    if isinstance(error, UsageError):
        return error.hint or parser.usage_hint
    return error.hint


def _similar_file(missing: object, *, executable: bool = False) -> str:
    """Return a question that names a file of similar name in the same folder; "" if none."""
    from difflib import get_close_matches

    if not isinstance(missing, str):
        return ""
    path = Path(missing)
    try:
        names = [
            each.name
            for each in path.parent.iterdir()
            if each.name != path.name
            and (not executable or (each.is_file() and os.access(each, os.X_OK)))
        ]
    except (OSError, ValueError):
        return ""
    near = get_close_matches(path.name, names, n=1)
    folder = missing.rpartition("/")[0]
    return f"did you mean {f'{folder}/' if '/' in missing else ''}{near[0]}?" if near else ""


def _set_up_process(*, runs_program: bool) -> None:
    """Make a mapped file that is truncated while it is read an error of its reader, and return
    freed memory to the system.
    """
    from rtit import _core

    _core.read_truncated_maps_as_zeros()
    if not runs_program:
        _core.return_freed_memory()


def _open_missing_standard_files() -> None:
    """Open /dev/null for closed standard files, so that no other file takes their numbers.

    A program that rtit starts finds them closed all the same.
    """
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(file)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


if __name__ == "__main__":
    sys.exit(main())
