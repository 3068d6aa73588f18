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
from rtit.capture.request import (
    RecordPlan,
    RecordRequest,
    check_arguments,
    check_environment,
    check_program,
)
from rtit.capture.session import Recording, RecordingSession, RecordingTotals
from rtit.capture.store.recording_writer import replace_output_file
from rtit.errors import InputError, RecordError, UnsupportedError, UsageError
from rtit.perfdata import ExitStatus, PerfData
from rtit.perfdata.filters import format_address_filters
from rtit.unit.time_model import TimeModel

_NO_RANDOMIZE = 0x0040000
_THIS_PERSONALITY = 0xFFFFFFFF
_TIMEOUT = 10.0


class PerfSession(RecordingSession):
    """A running `perf record`. perf writes the file, and instructions are not counted."""

    def __init__(self, plan: RecordPlan, process: subprocess.Popen[bytes]) -> None:
        super().__init__(plan)
        self._process = process
        self._totals = RecordingTotals()

    @property
    def totals(self) -> RecordingTotals:
        """Only `pt_bytes` is set; while perf runs, it is the size of the file."""
        if self._process.returncode is None:
            with contextlib.suppress(OSError):
                self._totals.pt_bytes = _perf_data_file(self._plan.path).stat().st_size
        return self._totals

    def step(self, timeout: float) -> bool:
        """Wait for perf; False when it has ended."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return True
        return False

    def snapshot(self) -> None:
        """Request a snapshot: perf takes one on SIGUSR2."""
        self._process.send_signal(signal.SIGUSR2)

    def signal(self, number: int) -> None:
        """End perf, which ends its program and completes the file. SIGTERM replaces SIGHUP, which
        perf does not handle.
        """
        self._process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def kill(self) -> None:
        """End perf by SIGTERM; by SIGKILL if it does not end within `_TIMEOUT`."""
        self._process.terminate()
        try:
            self._process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def finish(self) -> Recording:
        """Return the recording of perf. Raises RecordError if the file has no trace."""
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
        self._totals.pt_bytes = size
        wait_status = -code if code < 0 else code << 8
        attached = bool(plan.request.pids)
        return Recording(
            path=plan.path,
            exit_code=0 if attached else 128 - code if code < 0 else code,
            instructions=0,
            threads=0,
            pt_bytes=size,
            warnings=()
            if size
            else ("perf recorded no trace, because no traced code ran during the recording",),
            ending=None if attached else ExitStatus(wait_status, of_process=True),
            partial=bool(plan.filters) or plan.size_limits != type(plan.size_limits)(),
            counted=False,
        )

    def _close(self) -> None:
        if self._process.poll() is None:
            self.kill()
            self._process.wait()


def start_perf(
    request: RecordRequest, *, installation: PerfInstallation | None = None
) -> PerfSession:
    """Start `perf record` and return its session.

    `installation` None: perf is searched for. Raises UsageError for options that hardware or this
    processor does not support; RecordError if the program cannot be started (exit codes 125, 126,
    127).
    """
    check_perf_request(request)
    if installation is None:
        answer = find_perf(kernel=traces_kernel(request), all_cpus=request.all_cpus)
        if isinstance(answer, str):
            raise RecordError(answer)
        installation = answer
    plan = request.plan_recording()
    if installation.profile is not None:
        PtOptions.parse(request.event, profile=installation.profile, user_only=False)
    if not request.pids:
        check_program(request.argv, env=request.env, cwd=request.cwd)
    with replace_output_file(plan.path):
        process = _launch_perf(plan, [str(installation.perf), *perf_arguments(plan, installation)])
    return PerfSession(plan, process)


def traces_kernel(request: RecordRequest) -> bool:
    """Return whether the request includes the kernel."""
    return PtOptions.parse(request.event, user_only=False).kernel


def check_perf_request(request: RecordRequest) -> None:
    """Raise UsageError for options that only the software trace units support."""
    unsupported = {
        "--start-at": request.start_at,
        "--stop-at": request.stop_at,
        "--truth": request.truth,
        "--truth-format": request.truth_form,
        "--cpi and --core-clock": request.time not in (None, TimeModel()),
    }
    for option, value in unsupported.items():
        if value:
            raise UsageError(
                f"the perf back end records with PT hardware and does not support {option}; the "
                "other back ends do"
            )


def perf_arguments(plan: RecordPlan, installation: PerfInstallation) -> list[str]:
    """Return the arguments of perf.

    `--snapshot=e` writes a snapshot at the end, too. The user's own options are last, so that they
    override the others.
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
    if plan.options.kernel and os.access("/proc/kcore", os.R_OK) and installation.has_kcore:
        arguments += ["--kcore"]
    arguments += request.perf_options
    if request.pids:
        return [*arguments, "-p", ",".join(map(str, request.pids))]
    return [*arguments, "--", *check_arguments(request.argv)]


def _launch_perf(plan: RecordPlan, command: Sequence[str]) -> subprocess.Popen[bytes]:
    request = plan.request
    libc = None if request.aslr else ctypes.CDLL(None)

    def restore_signal_mask() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
        if libc is not None:
            libc.personality(libc.personality(_THIS_PERSONALITY) | _NO_RANDOMIZE)

    try:
        return subprocess.Popen(
            command,
            env=check_environment(request.env),
            cwd=request.cwd,
            preexec_fn=restore_signal_mask,  # noqa: PLW1509 - for the child alone
        )
    except OSError as error:
        raise RecordError(f"{command[0]} cannot be run: {error.strerror}") from error


def _perf_data_file(path: Path) -> Path:
    """Return the file with the records; with --kcore a recording is a directory."""
    return path / "data" if path.is_dir() else path
