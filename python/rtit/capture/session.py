"""A recording under way: the tracer at one end, the perf.data file at the other."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType

from rtit.capture.clocks import describe
from rtit.capture.events import EventLog
from rtit.capture.extent import Extent
from rtit.capture.filters import Filter, kernel_form, parse_filters
from rtit.capture.options import PtOptions
from rtit.capture.output import OutputSetup
from rtit.capture.ptrace import PtraceTracer, check_processes, check_program
from rtit.capture.recorder import Recorder
from rtit.capture.recording import Recording, Totals, exit_code_of, find_program, output_file
from rtit.capture.window import Window, parse_window
from rtit.errors import RecordError
from rtit.perfdata import TimeConversion, Writer
from rtit.registers import FULL
from rtit.unit import Parameters, TimeModel


class Session:
    """Drives one recording: a context manager; `step` until it returns False, then `finish`.

    Leaving the context early kills the program, or lets go of it if it was attached to, and keeps
    what was recorded.
    """

    def __init__(
        self,
        tracer: PtraceTracer,
        recorder: Recorder,
        path: Path,
        log: EventLog | None,
        window: Window,
        *,
        attached: bool = False,
    ) -> None:
        self._tracer = tracer
        self._recorder = recorder
        self._path = path
        self._log = log
        self._window = window
        self._attached = attached
        self._released = False

    @property
    def totals(self) -> Totals:
        """What has been recorded so far."""
        return self._recorder.totals

    def step(self, timeout: float) -> bool:
        """Take what the tracer has, waiting `timeout` seconds at most. False when everything has
        ended.
        """
        batch = self._tracer.next_batch(timeout)
        if batch is None:
            return False
        if self._log is not None:
            self._log.append(*batch)
        self._recorder.feed(*batch)
        if self._recorder.full and not self._released:
            self._released = True
            # What was attached to is traced by a process that knows of no release but this one.
            (self._tracer.kill if self._attached else self._tracer.release)()
        return True

    def snapshot(self) -> None:
        """Write the last packets of every thread, of a recording that keeps those alone."""
        self._recorder.dump()

    def signal(self, number: int) -> None:
        """Send a signal to the program."""
        self._tracer.signal(number)

    def kill(self) -> None:
        """Kill the program and everything it started, or let go of what was attached to.

        `step` then comes to its end.
        """
        self._tracer.kill()

    def finish(self) -> Recording:
        """Close the file and say what is in it."""
        self._recorder.close()
        totals = self._recorder.totals
        status = totals.status if totals.status is not None else 0
        return Recording(
            path=self._path,
            exit_code=0 if self._attached else exit_code_of(status),
            instructions=totals.clock,
            threads=totals.threads,
            pt_bytes=totals.pt_bytes,
            branches=totals.branches,
            stopped=self._recorder.facts.get("stopped"),
            warnings=(*totals.warnings, *self._window.missed(totals.edges)),
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._recorder.close()
            return
        self._tracer.kill()
        # The tracer still tells how the threads ended; a failing disk must not hide the first
        # error.
        with contextlib.suppress(RecordError, OSError):
            while self.step(timeout=1.0):
                pass
            self._recorder.close()


def start_ptrace(
    argv: Sequence[str],
    *,
    output: Path | str = "perf.data",
    event: str = "intel_pt//u",
    filters: Sequence[str] = (),
    truth: Path | str | None = None,
    start_at: str | None = None,
    stop_at: str | None = None,
    aslr: bool = True,
    env: dict[str, str] | None = None,
    cwd: Path | str | None = None,
    log: EventLog | None = None,
    blocked: Collection[int] = (),
    extent: Extent | None = None,
    time: TimeModel | None = None,
) -> Session:
    """Start a program under single steps and return the recording under way.

    `event` and `filters` are spelled as perf spells them; `truth` names a file for what the tracer
    itself sees; `start_at` and `stop_at` are a function or a number of instructions each
    (`rtit.capture.window`); `log` collects the capture events, for `replay`; `blocked` are the
    signals that the program starts with blocked; `extent` says how much is kept, `time` how the
    clocks run. An existing output file becomes `output.old`. Raises UsageError for wrong options,
    RecordError if the program cannot be started (exit codes 125, 126, 127).
    """
    path = Path(output)
    options = PtOptions.parse(event, profile=FULL)
    extent = extent or Extent()
    extent.check(options)
    program = find_program(argv[0], env)
    wanted = parse_filters(filters, program=program) if filters else []
    window = parse_window(start_at, stop_at, program=program)
    # The program is looked at first: a typing error must not cost an older recording.
    check_program(argv, env=env, cwd=cwd)
    with output_file(path):
        recorder = _recorder(path, options, wanted, argv, extent=extent, time=time)
        tracer = PtraceTracer(
            argv,
            env=env,
            cwd=cwd,
            no_aslr=not aslr,
            truth=truth,
            cut_at_branches=extent.snapshot is not None,
            blocked=blocked,
            window=window,
        )
    return Session(tracer, recorder, path, log, window)


def start_attached(
    pids: Sequence[int],
    *,
    output: Path | str = "perf.data",
    event: str = "intel_pt//u",
    filters: Sequence[str] = (),
    truth: Path | str | None = None,
    log: EventLog | None = None,
    extent: Extent | None = None,
    time: TimeModel | None = None,
) -> Session:
    """Attach to processes that run already and return the recording under way.

    It ends when they have ended or are let go (`Session.kill`); they then go on as if nobody had
    looked. The arguments are those of `start_ptrace`; filters that name no file mean the program of
    the processes. Raises UsageError for wrong options, RecordError (exit code 125) where a process
    cannot be attached to; then none is.
    """
    path = Path(output)
    options = PtOptions.parse(event, profile=FULL)
    check_processes(pids)
    wanted = parse_filters(filters, program=_program_of(pids)) if filters else []
    with output_file(path):
        recorder = _recorder(
            path, options, wanted, ["--pid", ",".join(map(str, pids))], extent=extent, time=time
        )
        tracer = PtraceTracer.attach(
            pids, truth=truth, cut_at_branches=extent is not None and extent.snapshot is not None
        )
    return Session(tracer, recorder, path, log, Window(), attached=True)


def _program_of(pids: Sequence[int]) -> str | None:
    """The file that all these processes run, if it is one."""
    try:
        files = {str(Path(f"/proc/{pid}/exe").readlink()) for pid in pids}
    except OSError:
        # It has ended; attaching says so.
        return None
    return files.pop() if len(files) == 1 else None


def replay(
    log: EventLog,
    output: Path | str,
    *,
    event: str = "intel_pt//u",
    filters: Sequence[str] = (),
    unit_output: OutputSetup | None = None,
    parameters: Parameters | None = None,
    extent: Extent | None = None,
    time: TimeModel | None = None,
) -> Recorder:
    """Run the trace units over capture events once more, under other settings, into a new file.

    `filters` must name their files. Returns the recorder, closed. Raises UsageError, RecordError.
    """
    options = PtOptions.parse(event, profile=FULL)
    recorder = _recorder(
        Path(output),
        options,
        parse_filters(filters) if filters else [],
        ["replay"],
        unit_output=unit_output,
        parameters=parameters,
        extent=extent,
        time=time,
    )
    for batch in log:
        recorder.feed(*batch)
    recorder.close()
    return recorder


def _recorder(
    path: Path,
    options: PtOptions,
    filters: list[Filter],
    argv: Sequence[str],
    *,
    unit_output: OutputSetup | None = None,
    parameters: Parameters | None = None,
    extent: Extent | None = None,
    time: TimeModel | None = None,
) -> Recorder:
    time = time or TimeModel()
    extent = extent or Extent()
    writer = Writer(
        path,
        config=options.config,
        cpuid=FULL.cpuid_text,
        cmdline=["rtit", "record", *argv],
        time=TimeConversion(time.time_shift, time.time_mult, time.time_zero),
        tsc_ctc=(time.tsc_numerator, time.tsc_denominator),
        max_nonturbo_ratio=time.max_non_turbo_ratio,
        filter=kernel_form(filters),
        snapshot=extent.snapshot is not None,
        facts={
            "profile": FULL.name,
            "time": describe(time),
            "event": str(options),
        },
    )
    return Recorder(
        writer,
        options,
        filters,
        profile=FULL,
        time=time,
        parameters=parameters,
        output=unit_output,
        extent=extent,
    )
