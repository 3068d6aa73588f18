"""The QEMU back end: a program runs translated in qemu-x86_64, and a plugin there holds one trace
unit a thread.

The plugin sends what the units write, and the sideband, over a socket as messages: a record as of
`rtit.capture.events`, then what belongs to it. Every thread has a clock of its own, raised at its
start and at each return of a system call to the latest that any thread has published.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rtit.capture.clocks import describe
from rtit.capture.extent import Extent
from rtit.capture.filters import Filter, kernel_form, parse_filters
from rtit.capture.options import PtOptions
from rtit.capture.ptrace import check_program
from rtit.capture.qemu_find import Found, find_qemu, resolve
from rtit.capture.qemu_folder import RecordingFolder
from rtit.capture.qemu_settings import ASKED_AT, edges_passed, plugin_settings
from rtit.capture.qemu_sink import Message, Sink
from rtit.capture.recording import Recording, Totals, exit_code_of, find_program, output_file
from rtit.capture.window import Window, parse_window
from rtit.errors import RecordError, UsageError
from rtit.perfdata import TimeConversion, Writer
from rtit.registers import FULL
from rtit.unit import TimeModel

_STEERING = ("LD_", "GLIBC_", "GCONV_PATH", "MALLOC_", "G_", "QEMU_", "RTIT_", "LOCPATH")
"""Variables that QEMU or its libraries would heed; the plugin gives the guest their names back."""

TRUTH_FORMS = {"hashes": 1 << 20, "runs": 1}
"""Form of a truth file -> instructions after which it has another hash: `hashes` has one where
control is transferred next after so many, or sooner; `runs` has every sequential run."""

__all__ = ["TRUTH_FORMS", "Found", "QemuSession", "find_qemu", "start_qemu"]

_MESSAGE = 1 << 18
_START_SECONDS = 30.0
_GATHER_SECONDS = 0.05
_HASHES_WHEN_CUT = 2048
"""Instructions between two hashes of the truth where the trace may end before the program does."""
# What the trace unit in the plugin does not do: event tracing.
_UNSUPPORTED = 1 << 31


def start_qemu(
    argv: Sequence[str],
    *,
    output: Path | str = "perf.data",
    event: str = "intel_pt//u",
    filters: Sequence[str] = (),
    truth: Path | str | None = None,
    truth_form: str | None = None,
    truth_by_instruction: bool = False,
    start_at: str | None = None,
    stop_at: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    found: Found | None = None,
    extent: Extent | None = None,
    time: TimeModel | None = None,
) -> QemuSession:
    """Start a program under QEMU and return the recording under way.

    `event` and `filters` are spelled as perf spells them; `truth` names a file for what was
    executed, in the form `truth_form` (see `TRUTH_FORMS`; None: hashes; address filters need every
    run listed), as the blocks tell it, or with `truth_by_instruction` as a callback of its own at
    each instruction does, which is slow; `start_at` and `stop_at` are a function or a number of
    instructions each (`rtit.capture.window`); `extent` says how much is kept, `time` how the clocks
    run. An existing output file becomes `output.old`. Raises UsageError for what this back end
    cannot do, RecordError if the program cannot be started (exit codes 125, 126, 127).
    """
    options = PtOptions.parse(event, profile=FULL)
    extent, model = extent or Extent(), time or TimeModel()
    extent.check(options)
    if options.rtit_ctl & _UNSUPPORTED:
        raise UsageError("event tracing (the term event) needs the ptrace back end")
    joined = 1 if filters else run_length(truth_form)
    if extent.max_size is not None:
        joined = min(joined, _HASHES_WHEN_CUT)
    if found is None:
        answer = find_qemu()
        if isinstance(answer, str):
            raise RecordError(answer)
        found = answer
    environment = dict(os.environ if env is None else env)
    found_program = find_program(argv[0], environment)
    wanted = parse_filters(filters, program=found_program) if filters else []
    window = parse_window(start_at, stop_at, program=found_program)
    if window and truth_by_instruction:
        raise UsageError("a start or stop needs a truth by blocks")
    check_program(argv, env=environment, cwd=cwd)
    program, arguments, name = resolve(found_program, argv, cwd)
    path = Path(output)
    with output_file(path):
        writer = _writer(path, options, wanted, argv, found, extent, model)
        sink = Sink(writer, truth, extent, model)
        mode = "none" if truth is None else "instructions" if truth_by_instruction else "blocks"
        session = QemuSession(sink, path, window)
        try:
            settings = plugin_settings(options, mode, joined, wanted, window, extent, model)
            session._launch(found, settings, program, arguments, name, environment, cwd)
        except BaseException:
            session._abandon()
            raise
    return session


def run_length(form: str | None) -> int:
    """Instructions that the truth joins into one run, at least. Raises UsageError for an unknown
    form.
    """
    if form is not None and form not in TRUTH_FORMS:
        raise UsageError(f"no truth form {form!r}; there are {', '.join(TRUTH_FORMS)}")
    return TRUTH_FORMS[form or "hashes"]


def _writer(
    path: Path,
    options: PtOptions,
    filters: list[Filter],
    argv: Sequence[str],
    found: Found,
    extent: Extent,
    model: TimeModel,
) -> Writer:
    return Writer(
        path,
        config=options.config,
        cpuid=FULL.cpuid_text,
        cmdline=["rtit", "record", *argv],
        time=TimeConversion(model.time_shift, model.time_mult, model.time_zero),
        tsc_ctc=(model.tsc_numerator, model.tsc_denominator),
        max_nonturbo_ratio=model.max_non_turbo_ratio,
        filter=kernel_form(filters),
        snapshot=extent.snapshot is not None,
        facts={
            "profile": FULL.name,
            "time": f"{describe(model)}, a clock a thread",
            "event": str(options),
            "backend": f"qemu-user {found.version}",
        },
    )


def _environment(env: Mapping[str, str], folder: str, program: str, name: str) -> dict[str, str]:
    hidden = {
        f"RTIT_GUEST_{key}" if key.startswith(_STEERING) else key: value
        for key, value in env.items()
    }
    return hidden | {
        "RTIT_QEMU_FOLDER": folder,
        "RTIT_QEMU_PROGRAM": os.path.realpath(program),
        "RTIT_QEMU_COMM": os.fsdecode(os.fsencode(name)[:15]),
        "RTIT_QEMU_UNBLOCK": "1",
        "LD_PRELOAD": f"{folder}/plugin.so",
    }


class QemuSession:
    """Drives one recording as `rtit.capture.session.Session` does: a context manager; `step` until
    it returns False, then `finish`.
    """

    def __init__(self, sink: Sink, path: Path, window: Window) -> None:
        self._sink = sink
        self._window = window
        self._path = path
        self._folder = RecordingFolder()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._selector = selectors.DefaultSelector()
        self._connections: list[socket.socket] = []
        self._buffer = memoryview(bytearray(_MESSAGE))
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._asked = 0
        self._dump_at: float | None = None

    @property
    def totals(self) -> Totals:
        """What has been recorded so far; `clock` is the number of retired instructions."""
        return self._sink.totals

    @property
    def pid(self) -> int:
        """The first process."""
        return self._process.pid if self._process is not None else 0

    def step(self, timeout: float) -> bool:
        """Take what the plugin has sent, waiting `timeout` seconds at most. False when everything
        has ended.
        """
        if self._dump_at is not None and time.monotonic() >= self._dump_at:
            self._dump_at = None
            self._sink.dump()
        elif self._dump_at is not None:
            timeout = min(timeout, _GATHER_SECONDS)
        was_full = self._sink.full
        if self._process is not None and self._sink.quiet and not self._connections:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
                return False
            return True
        ready = self._selector.select(timeout)
        for key, _ in ready:
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.fileobj, socket.socket):
                self._receive(key.fileobj, 64)
        if self._sink.full and not was_full:
            self._ask()
        if self._connections or ready or self._process is None:
            return True
        return self._process.poll() is None

    def snapshot(self) -> None:
        """Write the last packets of every thread, of a recording that keeps those alone.

        Threads that run are asked for what they hold back; `step` writes when they have had time.
        """
        self._asked += 1
        self._ask()
        self._dump_at = time.monotonic() + _GATHER_SECONDS

    def _ask(self) -> None:
        """Tell the plugin, in the page that it shares with us."""
        word = struct.pack("<Q", self._asked << 1 | self._sink.full)
        with contextlib.suppress(OSError), (Path(self._folder.name) / "clock").open("r+b") as page:
            page.seek(ASKED_AT)
            page.write(word)

    def signal(self, number: int) -> None:
        """Send a signal to the program."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the program and everything it started; `step` then comes to its end."""
        self._killed = True
        self._sink.totals.killed = True
        # Who has not connected yet cannot any more, and ends.
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._listener)
        self._listener.close()
        for pid in self._sink.pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)

    def finish(self) -> Recording:
        """Close the file and say what is in it."""
        totals = self._sink.totals
        status = self._process.wait() if self._process is not None else 0
        totals.status = -status if status < 0 else status << 8
        words = Path(self._folder.name, "clock").read_bytes()
        totals.warnings += self._window.missed(edges_passed(words, self._window))
        self._close()
        return Recording(
            path=self._path,
            exit_code=exit_code_of(totals.status),
            instructions=totals.clock,
            threads=totals.threads,
            pt_bytes=totals.pt_bytes,
            branches=totals.branches,
            stopped=self._sink.facts.get("stopped"),
            warnings=tuple(totals.warnings),
        )

    def __enter__(self) -> QemuSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._close()
        else:
            self._abandon()

    def _launch(
        self,
        found: Found,
        settings: str,
        program: str,
        arguments: list[str],
        name: str,
        env: Mapping[str, str],
        cwd: Path | str | None,
    ) -> None:
        folder = Path(self._folder.name)
        (folder / "plugin.so").symlink_to(found.plugin.resolve())
        (folder / "settings").write_text(settings)
        (folder / "clock").write_bytes(bytes(4096))
        self._listener.bind(str(folder / "socket"))
        self._listener.listen(256)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        path = program if not program.startswith("-") else f"./{program}"
        command = [str(found.qemu), "-plugin", str(folder / "plugin.so"), "-0", arguments[0], path]
        try:
            self._process = subprocess.Popen(
                [*command, *arguments[1:]],
                env=_environment(env, str(folder), str(Path(cwd or ".") / program), name),
                cwd=cwd,
                close_fds=False,
            )
        except OSError as error:
            raise RecordError(f"{found.qemu}: {error.strerror}") from error
        limit = time.monotonic() + _START_SECONDS
        while not self._sink.pids:
            if not self.step(0.05):
                raise RecordError(f"{found.qemu} ended before the program began")
            if time.monotonic() > limit:
                raise RecordError(f"{found.qemu} did not load the plugin")

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        # Its process may have sent messages on another connection before it ran a new program.
        for each in list(self._connections):
            self._receive(each, None)
        connection.setblocking(False)
        self._connections.append(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket, limit: int | None) -> None:
        taken = 0
        while limit is None or taken < limit:
            try:
                message = self._buffer[: connection.recv_into(self._buffer)]
            except BlockingIOError:
                return
            except OSError:
                message = self._buffer[:0]
            if not message:
                self._selector.unregister(connection)
                self._connections.remove(connection)
                connection.close()
                return
            taken += 1
            if message[0] == Message.HELLO:
                with contextlib.suppress(OSError):
                    connection.send(b"\1")
            else:
                self._sink.feed(message)

    def _abandon(self) -> None:
        self.kill()
        # A failing disk must not hide the first error.
        with contextlib.suppress(RecordError, OSError):
            while self.step(timeout=1.0):
                pass
        with contextlib.suppress(RecordError, OSError):
            self._close()

    def _close(self) -> None:
        self._sink.close()
        self._selector.close()
        for each in (self._listener, *self._connections):
            each.close()
        self._folder.cleanup()
