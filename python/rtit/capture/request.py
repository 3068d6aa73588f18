"""The request for a recording, and the plan that a back end makes of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.capture.options import PtOptions
from rtit.capture.private_files import refuse_dangling_link
from rtit.capture.program import check_arguments, find_program
from rtit.capture.record_window import RecordWindow, parse_window
from rtit.capture.store.size_limits import SizeLimits
from rtit.errors import ImageError, RecordError, UsageError
from rtit.registers import FULL
from rtit.unit.time_model import TimeModel

if TYPE_CHECKING:
    from rtit.perfdata.filters import AddressFilter

BACKENDS = ("auto", "qemu", "ptrace", "perf")

_MAX_CPUS = 1024

TRUTH_FORMS = {"hashes": 1 << 20, "runs": 1}
"""Form of a truth file -> instructions after which it has another hash: `hashes` has one where
control is transferred next after so many, or sooner; `runs` has every sequential run."""


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """What to record, and how.

    * `argv`: the program and its arguments, looked up in the PATH of `env`; or `pids`: the numbers
      of processes that run already, which are let go at the end.
    * `backend`: `qemu`, `ptrace` (single steps), or `auto`, which is QEMU where it can do this;
      `perf`: PT hardware, by `perf record`. For this one alone: kernel code in `event`; `all_cpus`,
      everything that runs as long as the program does; `mmap_pages`, the sizes of the kernel's
      buffers as perf spells them (`,64M`); `perf_options`, more for perf record, a word each.
    * `cpus`: the threads share so many CPUs, each with a buffer, as perf records a machine (single
      steps alone); 0: a buffer a thread.
    * `output`: the perf.data to write. An existing file becomes `output.old`.
    * `event` and `filters`: what is traced, spelled as perf spells them.
    * `start_at` and `stop_at`: a function or a number of instructions each (see
      `rtit.capture.record_window`).
    * `size_limits`: how much is kept (None: everything); `time`: how the clocks run (None: one
      nanosecond a retired instruction).
    * `truth`: a file for what was executed; `truth_form`: its form, `hashes` or `runs` (None: as
      the back end likes; single steps and address filters always list the runs).
    * `aslr` False loads the program at fixed addresses, which QEMU does in any case.
    * `env` (None: ours) and `cwd` (None: ours) of the program; `blocked`: the signals that it
      starts with blocked.
    * `qemu_env`: variables that QEMU itself reads: `QEMU_NAME=VALUE`, or `QEMU_NAME` with the value
      that it has in our environment. Those of `env` are the program's alone.

    Raises UsageError for values that are none and for those that exclude each other.
    """

    argv: Sequence[str] = ()
    _: KW_ONLY
    pids: Sequence[int] = ()
    backend: str = "auto"
    output: Path | str = "perf.data"
    event: str = "intel_pt//u"
    filters: Sequence[str] = ()
    start_at: str | None = None
    stop_at: str | None = None
    size_limits: SizeLimits | None = None
    time: TimeModel | None = None
    truth: Path | str | None = None
    truth_form: str | None = None
    aslr: bool = True
    env: Mapping[str, str] | None = None
    cwd: Path | str | None = None
    blocked: Collection[int] = ()
    all_cpus: bool = False
    mmap_pages: str | None = None
    perf_options: Sequence[str] = ()
    cpus: int = 0
    qemu_env: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.pids:
            self._check_attached()
        else:
            check_arguments(self.argv)
        if self.backend not in BACKENDS:
            raise UsageError(f"no back end {self.backend!r}; there are {', '.join(BACKENDS)}")
        if self.truth_form is not None and self.truth_form not in TRUTH_FORMS:
            raise UsageError(
                f"no truth form {self.truth_form!r}; there are {', '.join(TRUTH_FORMS)}"
            )
        check_distinct({"the recording": self.output, "--truth": self.truth})
        options = self._options()
        of_perf = self.all_cpus or self.mmap_pages is not None or self.perf_options
        if self.backend != "perf" and of_perf:
            raise UsageError("--all-cpus, --mmap-pages and --perf-option go with --backend perf")
        for word in self.perf_options:
            if not word.startswith("-") or word in ("-", "--"):
                raise UsageError(f"--perf-option takes an option with its value, not {word!r}")
            if word.startswith(("-o", "--out")):
                raise UsageError(f"--perf-option {word}: where to write is what -o says")
        if self.qemu_env:
            self._check_qemu_env()
        if self.cpus:
            self._check_cpus()
        if self.size_limits is not None:
            self.size_limits.check(options)

    def plan(self, program: str | None = None) -> RecordPlan:
        """Look up the names in `filters`, `start_at` and `stop_at`.

        Those without a file are of `program` (None: of `argv`). Raises UsageError for what is not
        there or not unique, RecordError (exit code 125) for a file that is no ELF file or cannot be
        read.
        """
        if program is None and not self.pids:
            program = find_program(self.argv[0], self.env)
        filters: tuple[AddressFilter, ...] = ()
        try:
            if self.filters:
                from rtit.capture.filters import parse_filters

                filters = tuple(parse_filters(self.filters, program=program))
            window = parse_window(self.start_at, self.stop_at, program=program)
        except ImageError as error:
            raise RecordError(str(error)) from error
        if self.truth is not None:
            refuse_dangling_link(self.truth)
        return RecordPlan(
            request=self,
            options=self._options(),
            filters=filters,
            window=window,
            size_limits=self.size_limits or SizeLimits(),
            time=self.time or TimeModel(),
        )

    def _options(self) -> PtOptions:
        if self.backend == "perf":
            return PtOptions.parse(self.event, user_only=False)
        return PtOptions.parse(self.event, profile=FULL)

    def _check_cpus(self) -> None:
        if not 0 < self.cpus <= _MAX_CPUS:
            raise UsageError(f"--cpus is {self.cpus}: there are 1 to {_MAX_CPUS}")
        if self.backend == "perf":
            raise UsageError("--cpus is for a modelled machine, not for --backend perf")
        if self.start_at or self.stop_at or (self.size_limits or SizeLimits()) != SizeLimits():
            raise UsageError(
                "--cpus goes with none of --start-at, --stop-at, --snapshot and --max-size"
            )

    def _check_qemu_env(self) -> None:
        if self.backend not in ("auto", "qemu"):
            raise UsageError("--qemu-env goes with --backend qemu")
        for entry in self.qemu_env:
            name, equals, _ = entry.partition("=")
            if not name.startswith("QEMU_") or "\0" in entry:
                raise UsageError(f"--qemu-env takes QEMU_NAME=VALUE, not {entry!r}")
            if not equals and name not in os.environ:
                raise UsageError(f"--qemu-env {name}: it is not set, and there is no value")

    def _check_attached(self) -> None:
        if self.argv:
            raise UsageError(
                "--pid records what runs already: there is no program to start with it"
            )
        if self.start_at or self.stop_at:
            raise UsageError(
                "--start-at and --stop-at are for a program that rtit starts, not for --pid"
            )
        if not self.aslr:
            raise UsageError("--no-aslr is for a program that is started, not for --pid")


def check_distinct(files: Mapping[str, Path | str | None]) -> None:
    """Raise UsageError if two of these names of files, each with what it is for, are one file."""
    known: dict[str, str] = {}
    for what, path in files.items():
        if path is None:
            continue
        real = os.path.realpath(path)
        # A device or a pipe may be several.
        if real in known and (Path(real).is_file() or not Path(real).exists()):
            raise UsageError(f"{known[real]} and {what} would be one file: {path}")
        known[real] = what


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """A request, read: what a back end is set up with."""

    request: RecordRequest
    options: PtOptions
    filters: tuple[AddressFilter, ...]
    window: RecordWindow
    size_limits: SizeLimits
    time: TimeModel

    @property
    def path(self) -> Path:
        """The file to write."""
        return Path(self.request.output)

    @property
    def command(self) -> list[str]:
        """The recorder's command line, as the file has it."""
        pids = self.request.pids
        asked = ["--pid", ",".join(map(str, pids))] if pids else list(self.request.argv)
        return ["rtit", "record", *asked]
