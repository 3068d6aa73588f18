"""Which back end records: QEMU where a fitting one is installed, single steps otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.errors import RecordError, UsageError

if TYPE_CHECKING:
    from rtit.capture.events import EventLog
    from rtit.capture.extent import Extent
    from rtit.capture.qemu import Found, QemuSession
    from rtit.capture.recording import Recording
    from rtit.capture.session import Session
    from rtit.unit import TimeModel

BACKENDS = ("auto", "qemu", "ptrace")


@dataclass(frozen=True, slots=True)
class Choice:
    """A back end, and why it is the one, in one clause."""

    backend: str
    why: str
    found: Found | None = None


def choose(backend: str = "auto", *, needs_ptrace: str | None = None) -> Choice:
    """Decide for a back end.

    `needs_ptrace` says what only single steps can do, where something like that is asked for.
    Raises UsageError for an unknown name or for QEMU asked for what it cannot do, RecordError
    where QEMU is asked for and none fits.
    """
    if backend not in BACKENDS:
        raise UsageError(f"no back end {backend!r}; there are {', '.join(BACKENDS)}")
    if backend == "ptrace":
        return Choice("ptrace", "as asked for")
    if needs_ptrace is not None:
        if backend == "qemu":
            raise UsageError(f"the QEMU back end cannot do this: {needs_ptrace}")
        return Choice("ptrace", needs_ptrace)
    from rtit.capture.qemu_find import Search

    search = Search()
    # What recording needs is loaded while QEMU answers.
    import_module("rtit.capture.qemu")
    found = search.result()
    if isinstance(found, str):
        if backend == "qemu":
            raise RecordError(found)
        return Choice("ptrace", found)
    why = "as asked for" if backend == "qemu" else "the fast one"
    return Choice("qemu", f"{why} ({found.qemu}, version {found.version})", found)


def start(
    argv: Sequence[str],
    *,
    backend: str | Choice = "auto",
    output: Path | str = "perf.data",
    event: str = "intel_pt//u",
    filters: Sequence[str] = (),
    truth: Path | str | None = None,
    truth_form: str | None = None,
    start_at: str | None = None,
    stop_at: str | None = None,
    aslr: bool = True,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    log: EventLog | None = None,
    blocked: Collection[int] = (),
    extent: Extent | None = None,
    time: TimeModel | None = None,
) -> Session | QemuSession:
    """Start a program and return the recording under way.

    `backend` is auto, qemu or ptrace, or what `choose` answered. `event` and `filters` are spelled
    as perf spells them; `truth` names a file for what was executed, `truth_form` its form (`hashes`
    or `runs`; single steps and address filters always list the runs); `start_at` and `stop_at` are
    a function or a number of instructions each (`rtit.capture.window`); `aslr` false loads the
    program at fixed addresses, which QEMU does in any case; `log` collects the tracer's events, for
    `replay`; `blocked` are the signals that the program starts with blocked; `extent` says how much
    is kept, `time` how the clocks run. An existing output file becomes `output.old`. Raises
    UsageError for wrong options, RecordError if the program cannot be started (exit codes 125, 126,
    127).
    """
    if isinstance(backend, str):
        backend = choose(backend, needs_ptrace=only_ptrace(log=log is not None))
    if backend.backend == "qemu":
        from rtit.capture.qemu import start_qemu

        return start_qemu(
            argv,
            output=output,
            event=event,
            filters=filters,
            truth=truth,
            truth_form=truth_form,
            start_at=start_at,
            stop_at=stop_at,
            env=env,
            cwd=cwd,
            found=backend.found,
            extent=extent,
            time=time,
        )
    if truth_form == "hashes":
        raise UsageError(f"a truth of hashes alone needs the QEMU back end ({backend.why})")
    from rtit.capture.session import start_ptrace

    return start_ptrace(
        argv,
        output=output,
        event=event,
        filters=filters,
        truth=truth,
        start_at=start_at,
        stop_at=stop_at,
        aslr=aslr,
        env=dict(env) if env is not None else None,
        cwd=cwd,
        log=log,
        blocked=blocked,
        extent=extent,
        time=time,
    )


def only_ptrace(*, log: bool, attached: bool = False) -> str | None:
    """What of this only single steps can do, if anything."""
    if attached:
        return "attaching to a running program needs single steps"
    if log:
        return "keeping the tracer's events needs single steps"
    return None


def record(
    argv: Sequence[str],
    *,
    backend: str = "auto",
    output: Path | str = "perf.data",
    event: str = "intel_pt//u",
    filters: Sequence[str] = (),
    truth: Path | str | None = None,
    truth_form: str | None = None,
    start_at: str | None = None,
    stop_at: str | None = None,
    aslr: bool = True,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    extent: Extent | None = None,
    time: TimeModel | None = None,
) -> Recording:
    """Record a program from its start to its end; the arguments are those of `start`.

    An exception (KeyboardInterrupt among them) kills the program; what was recorded stays.
    """
    session = start(
        argv,
        backend=backend,
        output=output,
        event=event,
        filters=filters,
        truth=truth,
        truth_form=truth_form,
        start_at=start_at,
        stop_at=stop_at,
        aslr=aslr,
        env=env,
        cwd=cwd,
        extent=extent,
        time=time,
    )
    with session:
        while session.step(timeout=0.2):
            pass
        return session.finish()
