"""Choose a back end and start a recording.

The choice is QEMU if a suitable version is installed, else single steps (ptrace). PT hardware is
used on request only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.errors import RecordError, UsageError

if TYPE_CHECKING:
    from rtit.capture.events import EventLog
    from rtit.capture.perf.availability import PerfInstallation as FoundPerf
    from rtit.capture.qemu.installation import QemuInstallation, QemuStartError
    from rtit.capture.request import RecordRequest, SizeLimits
    from rtit.capture.session import Recording, RecordingSession
    from rtit.unit.time_model import TimeModel


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A back end, and the reason for the choice, in one clause."""

    backend: str
    reason: str
    found: QemuInstallation | None = None
    perf: FoundPerf | None = None
    warning: str | None = None
    """A warning about the choice, in one sentence."""
    is_system: bool = False
    """Whether a whole machine is recorded, with CPUs in place of threads."""


def choose_backend(
    request: RecordRequest, *, log: bool = False, preload_module: str = "rtit.capture.qemu.start"
) -> BackendChoice:
    """Return the back end for a request.

    `log`: the tracer's events are recorded, too. `preload_module` is imported while QEMU answers
    the version probe. Raises UsageError if the requested back end cannot do what the request asks
    for, RecordError if it is not usable on this machine.
    """
    backend = request.backend
    if request.system:
        return _choose_system_emulator(request, log=log)
    if backend == "ptrace":
        return BackendChoice("ptrace", "as requested")
    if backend == "perf":
        return _choose_perf(request, log=log)
    needs_ptrace = reason_for_ptrace(request, log=log)
    if needs_ptrace is not None:
        if backend == "qemu":
            raise UsageError(f"the QEMU back end cannot do this: {needs_ptrace}")
        return BackendChoice("ptrace", needs_ptrace)
    from rtit.capture.qemu.installation import QemuSearch

    search = QemuSearch()

    import_module(preload_module)
    found = search.result()
    if isinstance(found, str):
        if backend == "qemu":
            raise RecordError(found)
        return BackendChoice("ptrace", found)
    reason = "as requested" if backend == "qemu" else "faster than ptrace"
    return BackendChoice("qemu", f"{reason} ({found.qemu}, version {found.version})", found)


def _choose_system_emulator(request: RecordRequest, *, log: bool) -> BackendChoice:
    from rtit.capture.qemu.system import find_system_qemu

    if log:
        raise UsageError("--events cannot be combined with --system")
    found = find_system_qemu(request)
    reason = f"whole system ({found.qemu}, version {found.version})"
    return BackendChoice("qemu", reason, found, is_system=True)


def _choose_perf(request: RecordRequest, *, log: bool) -> BackendChoice:
    from rtit.capture.perf.availability import find_perf
    from rtit.capture.perf.session import check_perf_request, traces_kernel

    if log:
        raise UsageError("the perf back end does not support --events, which needs single-stepping")
    check_perf_request(request)
    found = find_perf(kernel=traces_kernel(request), all_cpus=request.all_cpus)
    if isinstance(found, str):
        raise RecordError(f"{found}; the other back ends (--backend auto) need no PT hardware")
    return BackendChoice(
        "perf", f"as requested ({found.perf}, version {found.version})", perf=found
    )


def reason_for_ptrace(request: RecordRequest, *, log: bool) -> str | None:
    """Return which part of this request only single steps can do; None if there is none."""
    if request.pids:
        return "attaching to a running program needs single-stepping"
    if request.cpus:
        return "--cpus needs single-stepping"
    if log:
        return "--events needs single-stepping"
    return None


def start_recording(
    request: RecordRequest, *, choice: BackendChoice | None = None, log: EventLog | None = None
) -> RecordingSession:
    """Start a recording and return its session.

    `choice` is the result of `choose_backend` (None: it is called). `log` collects the tracer's
    events for `rtit.capture.ptrace.session.replay`. Raises UsageError for wrong options,
    RecordError if the program cannot be started (exit codes 125, 126, 127).
    """
    return start_chosen_backend(
        request, choice or choose_backend(request, log=log is not None), log=log
    )[0]


def start_chosen_backend(
    request: RecordRequest, choice: BackendChoice, *, log: EventLog | None = None
) -> tuple[RecordingSession, BackendChoice]:
    """Start a recording and return its session, and the back end that it uses.

    This is ptrace if `choice` is QEMU, QEMU cannot start and the request allows another back end.
    """
    if request.system and choice.found is not None:
        from rtit.capture.qemu.system import start_system

        return start_system(request, choice.found), choice
    if choice.backend == "qemu":
        from rtit.capture.qemu.installation import QemuStartError
        from rtit.capture.qemu.start import start_qemu

        try:
            return start_qemu(request, installation=choice.found), choice
        except QemuStartError as error:
            choice = fallback_from_qemu(request, error)
    if choice.backend == "perf":
        from rtit.capture.perf.session import start_perf

        return start_perf(request, installation=choice.perf), choice
    if request.truth_form == "hashes":
        raise UsageError(f"a truth file with only hashes needs the QEMU back end ({choice.reason})")
    from rtit.capture.ptrace.session import start_ptrace

    session = start_ptrace(request, log=log)
    if choice.warning is not None:
        session.totals.warnings.append(choice.warning)
    return session, choice


def fallback_from_qemu(request: RecordRequest, error: QemuStartError) -> BackendChoice:
    """Return the choice after QEMU failed to start. Raises `error` if the request names QEMU."""
    if request.backend == "qemu":
        raise error
    return BackendChoice(
        "ptrace", "QEMU cannot start", warning=f"{error}; recorded by single-stepping"
    )


def record(
    argv: Sequence[str],
    *,
    backend: str = "auto",
    output: Path | str = "perf.data",
    event: str = "intel_pt//u",
    filters: Sequence[str] = (),
    start_at: str | None = None,
    stop_at: str | None = None,
    size_limits: SizeLimits | None = None,
    time: TimeModel | None = None,
    truth: Path | str | None = None,
    truth_form: str | None = None,
    aslr: bool = True,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    all_cpus: bool = False,
    mmap_pages: str | None = None,
    perf_options: Sequence[str] = (),
    cpus: int = 0,
    qemu_env: Sequence[str] = (),
    system: bool = False,
    cr3: int | None = None,
) -> Recording:
    """Record a program from its start to its end.

    * `argv`: the program and its arguments; the program is looked up in the PATH of `env`.
    * `backend`: `qemu`, `ptrace` (single steps), or `auto`: QEMU if a usable one is installed, else
      ptrace; `perf`: PT hardware (not yet tested on hardware).
    * `output`: the perf.data to write. An existing file becomes `output.old`.
    * `event`: what the trace unit writes, as perf spells it: `intel_pt/TERM[=VALUE],.../u`.
    * `filters`: address filters as perf spells them: `filter main @ ./program`,
      `tracestop f @ ./program`.
    * `start_at`, `stop_at`: where tracing begins and ends: the first execution of a function
      (`NAME[@FILE]`), or a number of retired instructions (`N`; `+N` after the start).
    * `size_limits`: a snapshot or a maximum size (None: the whole trace is kept).
    * `time`: the clocks (`rtit.capture.options.make_time_model`; None: one nanosecond per retired
      instruction).
    * `truth`: a file for the executed instructions, for `rtit verify`; `truth_form`: `hashes` or
      `runs`.
    * `aslr`: False loads the program at fixed addresses. QEMU always does.
    * `env`, `cwd`: the program's environment and directory; None: those of this process.
    * `all_cpus`, `mmap_pages`, `perf_options`: for PT hardware only, see `RecordRequest`.
    * `cpus`: the number of CPUs that the threads share, with one buffer per CPU; 0: a buffer per
      thread.
    * `qemu_env`: variables for QEMU itself (`QEMU_NAME=VALUE`), see `RecordRequest`.
    * `system`: record the whole machine that `argv`, a command of qemu-system-x86_64, starts;
      `cr3`: trace it only while CR3 has this value (None: always).

    An exception (also KeyboardInterrupt) kills the program; the recording so far is kept. Raises
    UsageError for wrong options, RecordError if the program cannot be started (`exit_code` 125,
    126, 127) or the file cannot be written.
    """
    from rtit.capture.request import RecordRequest

    request = RecordRequest(
        argv,
        backend=backend,
        output=output,
        event=event,
        filters=filters,
        start_at=start_at,
        stop_at=stop_at,
        size_limits=size_limits,
        time=time,
        truth=truth,
        truth_form=truth_form,
        aslr=aslr,
        env=env,
        cwd=cwd,
        all_cpus=all_cpus,
        mmap_pages=mmap_pages,
        perf_options=perf_options,
        cpus=cpus,
        qemu_env=qemu_env,
        system=system,
        cr3=cr3,
    )
    with start_recording(request) as session:
        while session.step(timeout=0.2):
            pass
        return session.finish()
