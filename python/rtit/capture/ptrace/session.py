"""A recording by single steps: connects the tracer, the recorder and the output file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rtit.capture.clocks import describe_time_model
from rtit.capture.events import EventLog
from rtit.capture.program import check_program
from rtit.capture.ptrace.recorder import PtraceRecorder
from rtit.capture.ptrace.shared_cpus import SharedCpuRecorder
from rtit.capture.ptrace.tracer import PtraceTracer, check_processes
from rtit.capture.recording_file import open_writer, replace_output_file
from rtit.capture.request import RecordPlan, RecordRequest
from rtit.capture.session import TraceUnitSession
from rtit.capture.store.size_limits import SizeLimits
from rtit.capture.store.unit_output import OutputSetup
from rtit.perfdata import SwitchRecords
from rtit.registers import FULL
from rtit.unit.parameters.table import Parameters
from rtit.unit.time_model import TimeModel


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
        check_processes(request.pids)
        plan = request.plan(_program_of(request.pids))
    else:
        plan = request.plan()
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


def replay(
    log: EventLog,
    output: Path | str,
    *,
    event: str = "intel_pt//u",
    filters: Sequence[str] = (),
    unit_output: OutputSetup | None = None,
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
    plan = request.plan()
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


def _program_of(pids: Sequence[int]) -> str | None:
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
    unit_output: OutputSetup | None = None,
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
    unit_output: OutputSetup | None = None,
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
