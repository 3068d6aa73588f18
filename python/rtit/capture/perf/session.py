"""A recording by `perf record`: its command line, its process, its result."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rtit.capture.options import PtOptions
from rtit.capture.perf.availability import PerfInstallation, find_perf
from rtit.capture.program import check_arguments, check_environment, check_program
from rtit.capture.recording import Recording, RecordingTotals
from rtit.capture.recording_file import replace_output_file
from rtit.capture.request import RecordPlan, RecordRequest
from rtit.capture.session import RecordingSession
from rtit.errors import InputError, RecordError, UnsupportedError, UsageError
from rtit.perfdata import ExitStatus, PerfData
from rtit.perfdata.filters import format_address_filters
from rtit.unit.time_model import TimeModel

_NO_RANDOMIZE = 0x0040000
_THIS_PERSONALITY = 0xFFFFFFFF
_TIMEOUT = 10.0


class PerfSession(RecordingSession):
    """A running perf. It writes the file; nothing counts instructions."""

    def __init__(self, plan: RecordPlan, process: subprocess.Popen[bytes]) -> None:
        super().__init__(plan)
        self._process = process
        self._counted = RecordingTotals()

    @property
    def totals(self) -> RecordingTotals:
        """Nothing but `pt_bytes`: while it runs the size of the file."""
        if self._process.returncode is None:
            with contextlib.suppress(OSError):
                self._counted.pt_bytes = _data_file(self._plan.path).stat().st_size
        return self._counted

    def step(self, timeout: float) -> bool:
        """Wait; see `Session`."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return True
        return False

    def snapshot(self) -> None:
        """perf takes one by the same signal."""
        self._process.send_signal(signal.SIGUSR2)

    def signal(self, number: int) -> None:
        """perf ends what it started, and the file. It does not know SIGHUP."""
        self._process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def kill(self) -> None:
        """perf ends by SIGTERM, or is ended."""
        self._process.terminate()
        try:
            self._process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def finish(self) -> Recording:
        """Return what perf wrote. Raises RecordError if that is not a trace."""
        self._close()
        plan, code = self._plan, self._process.returncode
        try:
            with PerfData(plan.path) as data:
                buffers = data.auxtrace_buffers().values() if data.info is not None else None
                size = sum(piece.size for pieces in buffers or () for piece in pieces)
        except (InputError, UnsupportedError) as error:
            ended = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise RecordError(f"perf record failed ({ended}), and left no trace: {error}") from None
        if buffers is None:
            raise RecordError(f"perf record (exit code {code}) traced nothing: {plan.path}")
        self._counted.pt_bytes = size
        wait_status = -code if code < 0 else code << 8
        attached = bool(plan.request.pids)
        return Recording(
            path=plan.path,
            exit_code=0 if attached else 128 - code if code < 0 else code,
            instructions=0,
            threads=0,
            pt_bytes=size,
            warnings=() if size else ("perf recorded no trace: nothing ran while it was on",),
            ending=None if attached else ExitStatus(wait_status, of_process=True),
            partial=bool(plan.filters) or plan.size_limits != type(plan.size_limits)(),
            counted=False,
        )

    def _close(self) -> None:
        if self._process.poll() is None:
            self.kill()
            self._process.wait()


def start_perf(request: RecordRequest, *, found: PerfInstallation | None = None) -> PerfSession:
    """Start `perf record` as `request` asks for and return the recording under way.

    `found` is the perf to take (None: it is looked for). Raises UsageError for what hardware does
    not do, or this processor has not; RecordError if the program cannot be started (exit codes 125,
    126, 127).
    """
    check_perf_request(request)
    if found is None:
        answer = find_perf(kernel=traces_kernel(request), everybody=request.all_cpus)
        if isinstance(answer, str):
            raise RecordError(answer)
        found = answer
    plan = request.plan()
    if found.profile is not None:
        PtOptions.parse(request.event, profile=found.profile, user_only=False)
    if not request.pids:
        check_program(request.argv, env=request.env, cwd=request.cwd)
    with replace_output_file(plan.path):
        process = _launch_perf(plan, [str(found.perf), *perf_arguments(plan, found)])
    return PerfSession(plan, process)


def traces_kernel(request: RecordRequest) -> bool:
    """Return whether the kernel is to be traced."""
    return PtOptions.parse(request.event, user_only=False).kernel


def check_perf_request(request: RecordRequest) -> None:
    """Raise UsageError for what only our own trace units can do."""
    asked = {
        "--start-at": request.start_at,
        "--stop-at": request.stop_at,
        "--truth": request.truth,
        "--truth-format": request.truth_form,
        "--cpi and --core-clock": request.time not in (None, TimeModel()),
    }
    for option, value in asked.items():
        if value:
            raise UsageError(
                f"the perf back end records by hardware: {option} is for the others, which run the "
                "program step by step"
            )


def perf_arguments(plan: RecordPlan, found: PerfInstallation) -> list[str]:
    """Return the arguments of perf. Option names are equal; a snapshot needs one to write it
    at the end. What the user adds comes last, so that perf goes by it.
    """
    request, size_limits = plan.request, plan.size_limits
    arguments = ["record", "-N", "-o", str(plan.path.absolute()), "-e", request.event]
    if (text := format_address_filters(plan.filters)) is not None:
        arguments += ["--filter", text]
    if size_limits.snapshot is not None:
        arguments += [f"--snapshot=e{size_limits.snapshot}"]
    if size_limits.max_size is not None:
        arguments += [f"--max-size={size_limits.max_size}B"]
    if request.mmap_pages is not None:
        arguments += ["-m", request.mmap_pages]
    if request.all_cpus:
        arguments += ["-a"]
    if plan.options.kernel and os.access("/proc/kcore", os.R_OK) and found.copies_kernel:
        arguments += ["--kcore"]
    arguments += request.perf_options
    if request.pids:
        return [*arguments, "-p", ",".join(map(str, request.pids))]
    return [*arguments, "--", *check_arguments(request.argv)]


def _launch_perf(plan: RecordPlan, command: Sequence[str]) -> subprocess.Popen[bytes]:
    request = plan.request
    libc = None if request.aslr else ctypes.CDLL(None)

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
        if libc is not None:
            libc.personality(libc.personality(_THIS_PERSONALITY) | _NO_RANDOMIZE)

    try:
        return subprocess.Popen(
            command,
            env=check_environment(request.env),
            cwd=request.cwd,
            preexec_fn=prepare,  # noqa: PLW1509 - for the child alone
        )
    except OSError as error:
        raise RecordError(f"{command[0]} cannot be run: {error.strerror}") from error


def _data_file(path: Path) -> Path:
    """Where the records are of a recording that may be a directory."""
    return path / "data" if path.is_dir() else path
