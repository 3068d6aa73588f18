"""A recording by single steps: the tracer, connected with the recorder and the output file.

The tracer follows a program and everything it starts, on any x86-64 Linux. It starts the program,
or attaches to running processes and detaches from them at the end (`PtraceTracer.attach`). It needs
no privilege and no hardware; a step costs about 20 microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypedDict

from rtit.capture.events import EventLog
from rtit.capture.options import describe_time_model
from rtit.capture.ptrace.recorder import OutputSchemeSetup, PtraceRecorder
from rtit.capture.ptrace.shared_cpus import SharedCpuRecorder
from rtit.capture.request import (
    RecordPlan,
    RecordRequest,
    SizeLimits,
    StrPath,
    check_arguments,
    check_environment,
    check_program,
    native_tracer_module,
)
from rtit.capture.session import TraceUnitSession
from rtit.capture.store.recording_writer import open_writer, replace_output_file
from rtit.errors import UsageError
from rtit.perfdata import SwitchRecords
from rtit.registers import FULL
from rtit.unit.parameters.table import Parameters
from rtit.unit.time_model import TimeModel

if TYPE_CHECKING:
    from rtit._core import Tracer
    from rtit.capture.request import RecordWindow, WindowEdge


_MAX_PROCESSES = 1 << 22
"""The limit of Linux (PID_MAX_LIMIT)."""


class TracerStats(TypedDict):
    """Progress of a program under the tracer."""

    retired: int
    """Retired instructions of all threads."""
    stops: int
    seconds: float
    """Since the start; after the end, from start to end."""
    processes: int
    """Number of processes that exist now."""


def check_attachable_processes(pids: Sequence[int]) -> None:
    """Raise the error that `PtraceTracer.attach` would raise, without attaching."""
    if len(pids) > _MAX_PROCESSES:
        raise UsageError(f"more than {_MAX_PROCESSES} process ids")
    for pid in pids:
        if not 0 < pid < 1 << 31:
            raise UsageError(f"not a process id: {pid}")
    if not pids:
        raise UsageError("the list of process ids is empty")
    native_tracer_module().check_processes(list(pids))


class PtraceTracer:
    """A program under the tracer. A context manager: its exit kills all remaining processes.

    * `argv[0]` is searched in the PATH of `env` (None: our environment) unless it has a slash.
    * `cwd` is the directory to start in; `no_aslr` loads the program at fixed addresses.
    * `truth`: a file for the instructions that the tracer steps over. With `cut_at_branches` its
      runs end at each conditional branch, so that a path that begins there can be compared.
    * `pin` keeps the tracer and the program on one CPU, which is two to three times as fast; the
      program cannot observe it.
    * `blocked`: signals that are blocked when the program starts. Signals that Python ignores have
      their default action.
    * `window`: tracing is off outside of it.

    Raises UsageError for impossible arguments, RecordError if the program cannot be started:
    `exit_code` 127 not found, 126 not executable, 125 anything else.

    Meanwhile other threads of this process must not wait for arbitrary children (`os.wait`).
    """

    def __init__(
        self,
        argv: Sequence[StrPath],
        *,
        env: Mapping[str, str] | None = None,
        cwd: StrPath | None = None,
        no_aslr: bool = False,
        truth: StrPath | None = None,
        cut_at_branches: bool = False,
        pin: bool = True,
        blocked: Collection[int] = (),
        window: RecordWindow | None = None,
    ) -> None:
        self._tracer: Tracer = native_tracer_module().Tracer(
            check_arguments(argv),
            env=check_environment(env),
            cwd=cwd,
            no_aslr=no_aslr,
            truth=None if truth is None else Path(truth),
            cut_at_branches=cut_at_branches,
            pin=pin,
            blocked=sorted(blocked),
            start=_window_edge_for_tracer(window.start) if window else None,
            stop=_window_edge_for_tracer(window.stop) if window else None,
        )

    @classmethod
    def attach(
        cls, pids: Sequence[int], *, truth: StrPath | None = None, cut_at_branches: bool = False
    ) -> PtraceTracer:
        """Attach to running processes, with all their threads and everything they start.

        `kill`, the exit of the context and the end of this process detach from them and do not kill
        them. Raises UsageError for invalid process numbers, RecordError if attaching to one of them
        fails; then none is attached.
        """
        check_attachable_processes(pids)
        tracer = cls.__new__(cls)
        tracer._tracer = native_tracer_module().Tracer.attach(
            list(pids),
            truth=None if truth is None else Path(truth),
            cut_at_branches=cut_at_branches,
        )
        return tracer

    @property
    def pid(self) -> int:
        """The first process."""
        return self._tracer.pid

    def next_batch(self, timeout: float = 1.0) -> tuple[bytes, list[bytes]] | None:
        """Return the events since the last call as (records, blobs); see `rtit.capture.events`.

        The batch is empty if nothing happens within `timeout` seconds. None: the last event was
        returned before.
        """
        return self._tracer.next_batch(timeout)

    def __iter__(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield all batches that are not empty, until all processes have ended."""
        while (batch := self.next_batch()) is not None:
            if batch[0]:
                yield batch

    def signal(self, number: int) -> None:
        """Send a signal to the first process; nothing happens if it has ended."""
        try:
            self._tracer.signal(number)
        except ProcessLookupError:
            return

    def release(self) -> None:
        """Let the program continue without single steps; only the events of its end follow."""
        self._tracer.release()

    def kill(self) -> None:
        """Kill the program and everything it started; detach from attached processes.

        `next_batch` still returns the remaining events.
        """
        self._tracer.kill()

    def stats(self) -> TracerStats:
        """Return the progress of the program."""
        stats = self._tracer.stats()
        return TracerStats(
            retired=stats["retired"],
            stops=stats["stops"],
            seconds=stats["seconds"],
            processes=stats["processes"],
        )

    def __enter__(self) -> PtraceTracer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


def _window_edge_for_tracer(edge: WindowEdge | None) -> tuple[str | None, int, int, bool] | None:
    return None if edge is None else (edge.path, edge.offset, edge.count, edge.relative)


class PtraceSession(TraceUnitSession):
    """A recording by single steps; `log` collects the tracer's events."""

    def __init__(
        self, plan: RecordPlan, tracer: PtraceTracer, recorder: PtraceRecorder, log: EventLog | None
    ) -> None:
        super().__init__(plan, recorder)
        self._tracer = tracer
        self._recorder = recorder
        self._log = log
        self._released = False

    def step(self, timeout: float) -> bool:
        """Process the tracer's next batch; False after its last event."""
        batch = self._tracer.next_batch(timeout)
        if batch is None:
            return False
        if self._log is not None:
            self._log.append(*batch)
        self._recorder.process_events(*batch)
        if self._recorder.is_full and not self._released:
            self._released = True
            # For attached processes the tracer's only way to release them is `kill`.
            (self._tracer.kill if self._plan.request.pids else self._tracer.release)()
        return True

    def snapshot(self) -> None:
        """Write a snapshot, the last packets of every thread."""
        self._recorder.write_snapshot()

    def signal(self, number: int) -> None:
        """Send a signal to the program; nothing happens if it has ended."""
        self._tracer.signal(number)

    def kill(self) -> None:
        """Kill the program and everything it started; detach from attached processes."""
        self._tracer.kill()

    def _record_end(self) -> None:
        """Do nothing: the tracer's last event has set the totals."""

    def _close(self) -> None:
        self._recorder.close()


def start_ptrace(request: RecordRequest, *, log: EventLog | None = None) -> PtraceSession:
    """Start a program under single steps, or attach to `request.pids`; return the session.

    A recording of attached processes ends when they have ended or `kill` detaches from them; they
    then continue. Raises UsageError for wrong options, RecordError if the program cannot be started
    (exit codes 125, 126, 127) or a process cannot be attached to (125; then none is).
    """
    # Check the program first: a typing error must not replace an older recording.
    if request.pids:
        check_attachable_processes(request.pids)
        plan = request.plan_recording(_common_executable(request.pids))
    else:
        plan = request.plan_recording()
        check_program(request.argv, env=request.env, cwd=request.cwd)
    cut_at_branches = plan.size_limits.snapshot is not None
    with replace_output_file(plan.path):
        recorder = (
            _make_shared_cpu_recorder(plan, request.cpus, SwitchRecords.CPU_WIDE)
            if request.cpus
            else _make_recorder(plan)
        )
        if request.pids:
            tracer = PtraceTracer.attach(
                request.pids, truth=request.truth, cut_at_branches=cut_at_branches
            )
        else:
            tracer = PtraceTracer(
                request.argv,
                env=request.env,
                cwd=request.cwd,
                no_aslr=not request.aslr,
                truth=request.truth,
                cut_at_branches=cut_at_branches,
                blocked=request.blocked,
                window=plan.window,
            )
    return PtraceSession(plan, tracer, recorder, log)


def replay_events(
    log: EventLog,
    output: Path | str,
    *,
    event: str = "intel_pt//u",
    filters: Sequence[str] = (),
    unit_output: OutputSchemeSetup | None = None,
    parameters: Parameters | None = None,
    size_limits: SizeLimits | None = None,
    time: TimeModel | None = None,
    cpus: int = 0,
    switches: SwitchRecords = SwitchRecords.THREADS,
) -> PtraceRecorder:
    """Replay capture events through new trace units into a new file; return the closed recorder.

    `filters` must name their files. With `cpus` the threads share that many CPUs (see
    `SharedCpuRecorder`), and `switches` chooses the context-switch records. Raises UsageError,
    RecordError.
    """
    request = RecordRequest(
        ["replay"], output=output, event=event, filters=filters, size_limits=size_limits, time=time
    )
    plan = request.plan_recording()
    recorder = (
        _make_shared_cpu_recorder(
            plan, cpus, switches, unit_output=unit_output, parameters=parameters
        )
        if cpus
        else _make_recorder(plan, unit_output=unit_output, parameters=parameters)
    )
    for batch in log:
        recorder.process_events(*batch)
    recorder.close()
    return recorder


def _common_executable(pids: Sequence[int]) -> str | None:
    """Return the executable of these processes; None if they run several."""
    try:
        files = {str(Path(f"/proc/{pid}/exe").readlink()) for pid in pids}
    except OSError:
        # A process has ended; attaching to it raises the error.
        return None
    return files.pop() if len(files) == 1 else None


def _make_recorder(
    plan: RecordPlan,
    *,
    unit_output: OutputSchemeSetup | None = None,
    parameters: Parameters | None = None,
) -> PtraceRecorder:
    return PtraceRecorder(
        open_writer(plan, time=f"{describe_time_model(plan.time)}, one clock for all threads"),
        plan.options,
        plan.filters,
        profile=FULL,
        time=plan.time,
        parameters=parameters,
        output=unit_output,
        size_limits=plan.size_limits,
        has_window=bool(plan.window),
    )


def _make_shared_cpu_recorder(
    plan: RecordPlan,
    cpus: int,
    switches: SwitchRecords,
    *,
    unit_output: OutputSchemeSetup | None = None,
    parameters: Parameters | None = None,
) -> SharedCpuRecorder:
    time = f"{describe_time_model(plan.time)}, one clock for all CPUs"
    return SharedCpuRecorder(
        open_writer(plan, time=time, switches=switches),
        plan.options,
        plan.filters,
        profile=FULL,
        time=plan.time,
        parameters=parameters,
        output=unit_output,
        cpus=cpus,
    )
