"""`rtit gdb FILE`: debugs a recording in gdb, forwards and backwards."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rtit.cli import options, output
from rtit.cli.incomplete import IncompleteReport
from rtit.cli.parser import CommandParser
from rtit.errors import UsageError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from rtit.gdb.debugger import GdbCommand
    from rtit.gdb.target import GdbTarget

_LAST = 1_000_000

_EPILOG = """Examples:
  rtit gdb crash.data
  rtit gdb --batch --ex 'break write' --ex reverse-continue --ex bt
  rtit gdb --listen :1234
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.epilog = _EPILOG
    options.add_file_argument(parser)
    group = parser.add_argument_group("Debugger")
    options.add_list_option(
        group, "--ex", "COMMAND", "Run this command in gdb when gdb has started; may be repeated"
    )
    options.add_flag_option(group, "--batch", "Exit gdb after the --ex commands")
    options.add_value_option(
        group,
        "--gdb",
        "COMMAND",
        "Start gdb with this command, which may have options (default: gdb)",
        default="gdb",
    )
    options.add_value_option(
        group,
        "--listen",
        "[HOST:]PORT",
        "Do not start gdb, but wait until gdb connects (in gdb: target remote HOST:PORT); port 0 "
        "selects any free port",
    )
    group = parser.add_argument_group("Selection")
    options.add_value_option(
        group,
        "--tid",
        "TID",
        "Start in this thread and its process (default: the thread that crashed, or the first "
        "thread)",
        type=int,
    )
    options.add_value_option(
        group,
        "--last",
        "N",
        f"Pass only the last N instructions of each thread to gdb, which keeps all these "
        f"instructions in memory (default: {_LAST:,})",
        default=_LAST,
        type=int,
    )
    group.add_argument(
        "--format",
        choices=("pt", "bts"),
        help="Format of the trace that gdb gets. pt: packets, which gdb decodes; bts: blocks, "
        "which rtit has decoded (default: pt if gdb was built with libipt, else bts)",
    )
    options.add_image_options(parser)
    parser.add_general_options(rare="the options for JIT code, kernels and virtual machines")


def run(arguments: argparse.Namespace) -> int:
    """Start gdb, or wait for it."""
    if arguments.last < 1:
        raise UsageError(f"--last {arguments.last}: expected a number greater than 0")
    if arguments.listen is not None and (arguments.ex or arguments.batch):
        raise UsageError("--listen does not start gdb and cannot be combined with --ex or --batch")
    from rtit.gdb.debugger import find_gdb
    from rtit.gdb.server import open_listener
    from rtit.gdb.target import GdbTarget

    listener = open_listener(arguments.listen) if arguments.listen is not None else None
    debugger = find_gdb(arguments.gdb) if listener is None else None
    form = arguments.format or ("pt" if debugger is None or debugger.has_libipt else "bts")
    if debugger is not None and not debugger.has_libipt:
        _print_note(f"{debugger.argv[0]} was built without libipt: rtit sends blocks, not packets")
        if form == "pt":
            raise UsageError(f"{debugger.argv[0]} cannot read packets; use --format bts")
    with options.open_trace(arguments) as trace:
        target = GdbTarget(
            trace,
            arguments.tid,
            trace_format=form,
            max_instructions=arguments.last,
            report=_print_note,
        )
        for problem in target.program.problems:
            _print_note(problem)
        gaps = IncompleteReport("gdb", trace)
        gaps.print_image_problems()
        target.report_path_extent(target.tid)
        code = 0
        if debugger is not None:
            code = _run_gdb(debugger, target, arguments)
        elif listener is not None:
            with listener:
                _serve_one_connection(listener, target)
        if target.gaps:
            gaps.note_shown_gap()
        return max(code, gaps.exit_code())


def _serve_one_connection(listener: socket.socket, target: GdbTarget) -> None:
    from rtit.gdb.server import accept_connection, serve_connection

    host, port, *_ = listener.getsockname()
    _print_note(f"target remote {f'[{host}]' if ':' in host else host}:{port}")
    connection = accept_connection(listener, lambda: True)
    assert connection is not None
    serve_connection(connection, target)


def _run_gdb(debugger: GdbCommand, target: GdbTarget, arguments: argparse.Namespace) -> int:
    """Run gdb on this terminal and serve it; return the exit code."""
    import socket as sockets

    main = target.program.main
    with (
        tempfile.TemporaryDirectory(prefix="rtit-gdb-") as folder,
        ExitStack() as stack,
        sockets.socket(sockets.AF_UNIX) as listener,
    ):
        number = os.open(folder, os.O_PATH)
        stack.callback(os.close, number)
        # The path of a socket has some hundred bytes at most, which TMPDIR alone may have.
        socket_path = f"/proc/{os.getpid()}/fd/{number}/socket"
        listener.bind(socket_path)
        listener.listen(1)
        program = main.path if main is not None else None
        command = debugger.command_line(socket_path, program, arguments.ex, batch=arguments.batch)
        with subprocess.Popen(command) as gdb:
            # The terminal sends Ctrl-C to both, and gdb handles it; other signals end both.
            handlers: dict[int, Any] = {signal.SIGINT: signal.SIG_IGN}
            ended: list[int] = []

            def forward_signal(number: int, _: object) -> None:
                ended.append(number)
                # At SIGTERM gdb 13 may stumble over its Python and leave a core.
                gdb.send_signal(signal.SIGHUP if signal.SIGHUP in handlers else number)

            for number in (int(signal.SIGTERM), int(signal.SIGHUP)):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    handlers[number] = forward_signal
            before = {number: signal.signal(number, each) for number, each in handlers.items()}
            try:
                _serve_connections(listener, target, lambda: gdb.poll() is None)
            finally:
                for number, each in before.items():
                    signal.signal(number, each)
        if ended:
            return 128 + ended[0]
        return 1 if gdb.returncode else 0


def _serve_connections(
    listener: socket.socket, target: GdbTarget, is_running: Callable[[], bool]
) -> None:
    """Serve one connection after the other: a user may repeat `target remote`."""
    from rtit.gdb.server import accept_connection, serve_connection

    while (connection := accept_connection(listener, is_running)) is not None:
        serve_connection(connection, target)


def _print_note(text: str) -> None:
    output.print_error("gdb", text)
