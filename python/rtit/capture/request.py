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
"""Form of a truth file -> least number of instructions between two of its records.

`hashes` writes a hash at the first control transfer after so many instructions, or sooner; `runs`
lists every sequential run."""


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """What to record, and how.

    * `argv`: the program and its arguments, searched in the PATH of `env`; or `pids`: the running
      processes to attach to, which continue after the recording.
    * `backend`: `qemu`, `ptrace` (single steps), `auto` (QEMU if it supports the request, else
      ptrace), or `perf` (PT hardware, by `perf record`). Only `perf` supports kernel code in
      `event`, `all_cpus` (record the whole machine while the program runs), `mmap_pages` (buffer
      sizes in perf's syntax, `,64M`) and `perf_options` (further options, one word each).
    * `cpus`: the number of CPUs that the threads share, with one buffer per CPU, as perf records a
      machine (ptrace only); 0: one buffer per thread.
    * `output`: the perf.data file to write. An existing file becomes `output.old`.
    * `event`, `filters`: what is traced, in perf's syntax.
    * `start_at`, `stop_at`: a function or a number of instructions (see
      `rtit.capture.record_window`).
    * `size_limits`: a snapshot or a maximum size (None: the whole trace is kept).
    * `time`: the clocks (None: one nanosecond per retired instruction).
    * `truth`: a file for the executed instructions; `truth_form`: `hashes` or `runs` (None: chosen
      by the back end; ptrace and address filters always list runs).
    * `aslr`: False loads the program at fixed addresses. QEMU always does.
    * `env`, `cwd`: the program's environment and directory (None: those of this process);
      `blocked`: the signals that are blocked when it starts.
    * `qemu_env`: variables for QEMU itself: `QEMU_NAME=VALUE`, or `QEMU_NAME` with its value in our
      environment. The variables in `env` reach the program only.

    Raises UsageError for invalid values, and for options that exclude each other.
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
            raise UsageError(
                f"unknown back end {self.backend!r}; valid back ends: {', '.join(BACKENDS)}"
            )
        if self.truth_form is not None and self.truth_form not in TRUTH_FORMS:
            raise UsageError(
                f"unknown truth form {self.truth_form!r}; valid forms: {', '.join(TRUTH_FORMS)}"
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
                raise UsageError(f"--perf-option {word}: use -o to choose the output file")
        if self.qemu_env:
            self._check_qemu_env()
        if self.cpus:
            self._check_cpus()
        if self.size_limits is not None:
            self.size_limits.check(options)

    def plan(self, program: str | None = None) -> RecordPlan:
        """Return the plan: look up the functions of `filters`, `start_at` and `stop_at`.

        `program` is the file of functions without a file (None: the program of `argv`). Raises
        UsageError for missing or ambiguous functions, RecordError (exit code 125) for a file that
        is not an ELF file or cannot be read.
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
    """Raise UsageError if two of these paths are one file. Keys name the purpose of each path."""
    known: dict[str, str] = {}
    for what, path in files.items():
        if path is None:
            continue
        real = os.path.realpath(path)
        # A device or a pipe may serve several purposes.
        if real in known and (Path(real).is_file() or not Path(real).exists()):
            raise UsageError(f"{known[real]} and {what} would be one file: {path}")
        known[real] = what


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """A parsed request: the settings of a back end."""

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
        """The command line in the header of the file."""
        pids = self.request.pids
        asked = ["--pid", ",".join(map(str, pids))] if pids else list(self.request.argv)
        return ["rtit", "record", *asked]
