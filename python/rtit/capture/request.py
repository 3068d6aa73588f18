"""The request for a recording, and the plan that a back end makes of it.

The parts, in order: the program; the traced part of a run, `--start-at` and `--stop-at`; limits on
the size of a recording; request and plan.

    FUNCTION[@FILE] | N | +N

An edge of the traced part is the first execution of a function, or the N'th retired instruction of
all threads together. +N, for the stop only, counts from the start. Outside of the window TraceEn is
0, so the trace has nothing of it. There is one window, and each edge is passed once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rtit.capture.options import PtOptions
from rtit.capture.output_files import refuse_dangling_link
from rtit.errors import ImageError, RecordError, UsageError
from rtit.registers import FULL
from rtit.unit.time_model import TimeModel

if TYPE_CHECKING:
    from rtit.image.kernel.boot_image import Symbol
    from rtit.perfdata.filters import AddressFilter


StrPath = str | os.PathLike[str]


def check_program(
    argv: Sequence[StrPath],
    *,
    env: Mapping[str, str] | None = None,
    cwd: StrPath | None = None,
) -> None:
    """Raise the error that starting the program would raise, without starting it.

    UsageError for impossible arguments, RecordError if the program cannot be started: `exit_code`
    127 not found, 126 not executable, 125 anything else.
    """
    native_tracer_module().check_program(check_arguments(argv), env=check_environment(env), cwd=cwd)


def find_program(program: str, env: Mapping[str, str] | None) -> str:
    """Return the path of a program, searched in PATH; its name if it is not found."""
    path = (env or os.environ).get("PATH")
    found = program if "/" in program else find_executable(program, path)
    return found or program


def find_executable(name: str, path: str | None = None) -> str | None:
    """Return the executable file of this name in `path` (None: PATH); None if there is none.

    Like `shutil.which`, without its slow imports.
    """
    if path is None:
        path = os.environ.get("PATH", os.defpath)
    for folder in path.split(os.pathsep) if path else ():
        found = os.path.join(folder, name)  # noqa: PTH118 - "" is the current folder
        if os.access(found, os.X_OK) and not os.path.isdir(found):  # noqa: PTH112
            return found
    return None


def check_arguments(argv: Sequence[StrPath]) -> list[str]:
    """Return `argv` as a list of strings. Raises UsageError for impossible arguments."""
    if isinstance(argv, str) or not argv:
        raise UsageError(f"argv must be a list of the program and its arguments, not {argv!r}")
    words = [os.fspath(argument) for argument in argv]
    for word in words:
        if "\0" in word:
            raise UsageError(f"an argument has a NUL byte: {word!r}")
    return words


def check_environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of `env` (None: our environment). Raises UsageError for invalid entries."""
    if env is None:
        # Not the environment of the C library, which may differ from `os.environ`.
        env = os.environ
    for name, value in env.items():
        if "=" in name or "\0" in name + value:
            raise UsageError(f"not an environment variable: {name!r}={value!r}")
    return dict(env)


def native_tracer_module() -> ModuleType:
    """Return the native module. Raises RecordError if it has no tracer."""
    try:
        from rtit import _core
    except ImportError as error:
        raise RecordError(f"the native module does not load: {error}") from error
    if not hasattr(_core, "Tracer"):
        raise RecordError("recording by ptrace needs Linux on x86-64")
    return _core


_COUNT = re.compile(r"(\+?)([0-9][0-9_]*)")
_ADDRESS = re.compile(r"0[xX][0-9a-fA-F]+")
_EDGE_FORM = re.compile(r"#(?:[gG]|[0-9]+)$")
_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class WindowEdge:
    """Where the window begins or ends.

    A function: `path` is its file's real path, `offset` and `size` are in bytes of the file. Else
    `count` instructions, since the start if `relative`. `text` is what the user wrote. Of a system:
    `path` is "", and `offset` an address; `is_linked` is that of `AddressFilter`.
    """

    text: str
    path: str | None = None
    offset: int = 0
    size: int = 0
    count: int = 0
    relative: bool = False
    is_linked: bool = False


@dataclass(frozen=True, slots=True)
class RecordWindow:
    """Both edges. Without a start tracing begins, and without a stop it ends, with the program."""

    start: WindowEdge | None = None
    stop: WindowEdge | None = None

    def __bool__(self) -> bool:
        return self.start is not None or self.stop is not None

    def describe_missed_edges(self, passed: int) -> list[str]:
        """Return warnings for the edges that were not reached; `passed`: how many were."""
        warnings = []
        if self.start is not None and passed < 1:
            warnings.append(
                f"{self.start.text} (--start-at) was not reached, so the trace is empty"
            )
        elif self.stop is not None and passed < 2:
            warnings.append(
                f"{self.stop.text} (--stop-at) was not reached, so the trace ends with the program"
            )
        return warnings


def parse_window(
    start: str | None, stop: str | None, *, program: str | PathLike[str] | None = None
) -> RecordWindow:
    """Return the window of these options; `program` is the file of functions without a file.

    Raises UsageError for syntax errors, for missing or ambiguous functions, and for a stop that is
    not after the start; ImageError for a file that cannot be read.
    """
    first = _parse_edge("--start-at", start, program) if start is not None else None
    last = _parse_edge("--stop-at", stop, program) if stop is not None else None
    if first is not None and first.relative:
        raise UsageError(
            f"--start-at {start}: +N counts from the start of tracing, so only --stop-at accepts +N"
        )
    if last is not None and last.path is None:
        least = first.count if first is not None and not last.relative else 0
        if last.count <= least:
            raise UsageError(
                f"--stop-at {stop} leaves nothing to trace: N must be greater than {least}"
            )
    return RecordWindow(first, last)


def parse_system_window(
    start: str | None, stop: str | None, kernel: Sequence[Symbol]
) -> RecordWindow:
    """Return the recording window of a whole system.

    An edge is a function of the kernel or an address (0x...). `kernel` has the symbols of the
    kernel as linked; it is empty if they are unknown. Raises UsageError.
    """
    return RecordWindow(
        None if start is None else _parse_system_edge("--start-at", start, kernel),
        None if stop is None else _parse_system_edge("--stop-at", stop, kernel),
    )


def _parse_system_edge(option: str, text: str, kernel: Sequence[Symbol]) -> WindowEdge:
    from rtit.capture.filters import parse_system_filters

    word = text.strip()
    is_address = _ADDRESS.fullmatch(word) is not None
    if not is_address and (not word or word[0] in "+-0123456789"):
        raise UsageError(
            f"{option} {text}: with --system, expected a function of the kernel or an address "
            "(0x...)"
        )
    try:
        [found] = parse_system_filters(
            [f"filter {word}/1" if is_address else f"filter {word}"], kernel
        )
    except UsageError as error:
        raise UsageError(f"{option} {text}: {_shorten_filter_error(error)}") from error
    return WindowEdge(text, path="", offset=found.offset, size=1, is_linked=found.is_linked)


def _parse_edge(option: str, text: str, program: str | PathLike[str] | None) -> WindowEdge:
    number = _COUNT.fullmatch(text.strip())
    if number is not None:
        count = int(number[2].replace("_", ""))
        if count >= _LIMIT:
            raise UsageError(f"{option} {text}: no program executes so many instructions")
        return WindowEdge(text, count=count, relative=bool(number[1]))
    name, at, file = (part.strip() for part in text.rpartition("@"))
    if not at or file == "plt":
        name, at, file = text.strip(), "", ""
    if not name or name[0] in "+-0123456789":
        raise UsageError(
            f"{option} {text}: expected a number of instructions or a function (FUNCTION[@FILE])"
        )
    from rtit.capture.filters import parse_filters

    try:
        number = _EDGE_FORM.search(name)
        selection = number[0] if number else ""
        bare = name.removesuffix(selection).rstrip()
        filter_text = f'filter "{bare}" {selection}' + (f" @ {file}" if at else "")
        [found] = parse_filters(filter_text, program=program)
    except UsageError as error:
        raise UsageError(f"{option} {text}: {_shorten_filter_error(error)}") from error
    return WindowEdge(text, path=found.path, offset=found.offset, size=found.size)


def _shorten_filter_error(error: UsageError) -> str:
    """Return the error without the filter's text and syntax."""
    text = str(error)
    if text.startswith("filter "):
        text = text.partition(": ")[2].partition("; syntax: ")[0]
    return text


_SIZE = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)([BKMG]?)", re.IGNORECASE)
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MAX_SIZE = 1 << 62


def parse_size(text: str, what: str = "a size") -> int:
    """Bytes from `4096`, `512K`, `4M` or `1G`; `what` is the option, for the error.

    Units are powers of 1024, in upper or lower case, as in perf. Raises UsageError for anything
    else, for 0, and for 2**62 bytes or more.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{what} must be a number with B, K, M or G, such as 4M, not {text!r}")
    size = int(match[1], 16 if match[1][:2] in ("0x", "0X") else 10) * _UNITS[match[2].upper()]
    if not 0 < size < _MAX_SIZE:
        raise UsageError(f"{what} must be more than 0 and less than 4 EiB, not {text!r}")
    return size


def format_size(size: int) -> str:
    """Return the shortest text from which `parse_size` returns `size`."""
    for unit in ("G", "M", "K"):
        if size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


_MAX_PSB_PERIOD = 256
_MIN_FILE_SIZE = 1 << 14
_MAX_RING_SIZE = 1 << 32


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Limits in bytes. `snapshot`: keep the last bytes of each thread or CPU; `max_size`: stop when
    the file reaches this size.
    """

    snapshot: int | None = None
    max_size: int | None = None

    def check_limits(self, options: PtOptions) -> None:
        """Raise UsageError for limits that leave nothing to decode, and for both together."""
        if self.snapshot is not None and self.max_size is not None:
            raise UsageError(
                "--snapshot and --max-size cannot be combined: --snapshot has its own size"
            )
        if self.max_size is not None and self.max_size < _MIN_FILE_SIZE:
            raise UsageError(
                f"--max-size {format_size(self.max_size)} is too small: a recording without "
                f"packets takes at least {format_size(_MIN_FILE_SIZE)}"
            )
        if self.snapshot is None:
            return
        period = 1 << (options.psb_period + 11)
        if self.snapshot < period + _MAX_PSB_PERIOD:
            raise UsageError(
                f"--snapshot {format_size(self.snapshot)} may not contain a PSB, where decoding "
                f"begins: the trace has a PSB every {format_size(period)}, so use "
                f"{format_size(2 * period)} or a smaller psb_period"
            )
        if self.snapshot > _MAX_RING_SIZE:
            raise UsageError(f"--snapshot accepts at most {format_size(_MAX_RING_SIZE)} per thread")


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
      `rtit.capture.request`).
    * `size_limits`: a snapshot or a maximum size (None: the whole trace is kept).
    * `time`: the clocks (None: one nanosecond per retired instruction).
    * `truth`: a file for the executed instructions; `truth_form`: `hashes` or `runs` (None: chosen
      by the back end; ptrace and address filters always list runs).
    * `aslr`: False loads the program at fixed addresses. QEMU always does.
    * `env`, `cwd`: the program's environment and directory (None: those of this process);
      `blocked`: the signals that are blocked when it starts.
    * `qemu_env`: variables for QEMU itself: `QEMU_NAME=VALUE`, or `QEMU_NAME` with its value in our
      environment. The variables in `env` reach the program only.
    * `system`: `argv` is the command of qemu-system-x86_64, and the whole machine is recorded.
    * `cr3`: the only CR3 value for which the machine is traced (None: all).

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
    system: bool = False
    cr3: int | None = None

    def __post_init__(self) -> None:
        if self.pids:
            self._check_attach_options()
        else:
            check_arguments(self.argv)
        if self.backend not in BACKENDS:
            raise UsageError(
                f"unknown back end {self.backend!r}; valid back ends: {', '.join(BACKENDS)}"
            )
        if self.truth_form is not None and self.truth_form not in TRUTH_FORMS:
            raise UsageError(
                f"unknown truth format {self.truth_form!r}; valid formats: {', '.join(TRUTH_FORMS)}"
            )
        check_distinct_files({"the recording": self.output, "--truth": self.truth})
        options = self._pt_options()
        of_perf = self.all_cpus or self.mmap_pages is not None or self.perf_options
        if self.backend != "perf" and of_perf:
            raise UsageError("--all-cpus, --mmap-pages and --perf-option need --backend perf")
        for word in self.perf_options:
            if not word.startswith("-") or word in ("-", "--"):
                raise UsageError(
                    f"--perf-option needs an option together with its value, not {word!r}"
                )
            if word.startswith(("-o", "--out")):
                raise UsageError(f"--perf-option {word}: use -o to choose the output file")
        if self.qemu_env:
            self._check_qemu_env()
        if self.cpus:
            self._check_cpus()
        if self.system:
            self._check_system_options()
        elif self.cr3 is not None:
            raise UsageError("--cr3 needs --system")
        if self.size_limits is not None:
            self.size_limits.check_limits(options)

    def plan_recording(
        self, program: str | None = None, kernel: Sequence[Symbol] = ()
    ) -> RecordPlan:
        """Return the plan: look up the functions of `filters`, `start_at` and `stop_at`.

        `program` is the file of functions without a file (None: the program of `argv`); `kernel`
        has the symbols of the kernel as linked; it is empty if they are unknown. Raises
        UsageError for missing or ambiguous functions, RecordError (exit code 125) for a file that
        is not an ELF file or cannot be read.
        """
        if program is None and not self.pids and not self.system:
            program = find_program(self.argv[0], self.env)
        filters: tuple[AddressFilter, ...] = ()
        try:
            if self.filters:
                from rtit.capture.filters import parse_filters, parse_system_filters

                filters = tuple(
                    parse_system_filters(self.filters, kernel)
                    if self.system
                    else parse_filters(self.filters, program=program)
                )
            window = (
                parse_system_window(self.start_at, self.stop_at, kernel)
                if self.system
                else parse_window(self.start_at, self.stop_at, program=program)
            )
        except ImageError as error:
            raise RecordError(str(error)) from error
        if self.truth is not None:
            refuse_dangling_link(self.truth)
        return RecordPlan(
            request=self,
            options=self._pt_options(),
            filters=filters,
            window=window,
            size_limits=self.size_limits or SizeLimits(),
            time=self.time or TimeModel(),
        )

    def _pt_options(self) -> PtOptions:
        if self.backend == "perf":
            return PtOptions.parse(self.event, user_only=False)
        return PtOptions.parse(self.event, profile=FULL, user_only=not self.system)

    def _check_cpus(self) -> None:
        if not 0 < self.cpus <= _MAX_CPUS:
            raise UsageError(f"--cpus {self.cpus}: expected a number from 1 to {_MAX_CPUS}")
        if self.backend == "perf":
            raise UsageError("--cpus cannot be combined with --backend perf")
        if self.start_at or self.stop_at or (self.size_limits or SizeLimits()) != SizeLimits():
            raise UsageError(
                "--cpus cannot be combined with --start-at, --stop-at, --snapshot or --max-size"
            )

    def _check_system_options(self) -> None:
        if self.backend not in ("auto", "qemu"):
            raise UsageError("--system needs --backend qemu")
        if self.cpus:
            raise UsageError("--cpus with --system needs --kernel; QEMU has the option -smp")
        excluded = {
            "--pid": self.pids,
            "--qemu-env": self.qemu_env,
        }
        for option, value in excluded.items():
            if value:
                raise UsageError(f"{option} cannot be combined with --system")
        if self.cr3 is not None and not 0 <= self.cr3 < 1 << 64:
            raise UsageError("--cr3 needs a value of 64 bits")

    def _check_qemu_env(self) -> None:
        if self.backend not in ("auto", "qemu"):
            raise UsageError("--qemu-env needs --backend qemu")
        for entry in self.qemu_env:
            name, equals, _ = entry.partition("=")
            if not name.startswith("QEMU_") or "\0" in entry:
                raise UsageError(f"--qemu-env needs QEMU_NAME=VALUE, not {entry!r}")
            if not equals and name not in os.environ:
                raise UsageError(
                    f"--qemu-env {name}: the variable is not set in rtit's "
                    "environment, and no value is given"
                )

    def _check_attach_options(self) -> None:
        if self.argv:
            raise UsageError(
                "--pid records running processes and cannot be combined with a program to run"
            )
        if self.start_at or self.stop_at:
            raise UsageError("--start-at and --stop-at cannot be combined with --pid")
        if not self.aslr:
            raise UsageError("--no-aslr cannot be combined with --pid")


def check_distinct_files(files: Mapping[str, Path | str | None]) -> None:
    """Raise UsageError if two of these paths are one file. Keys name the purpose of each path."""
    known: dict[str, str] = {}
    for what, path in files.items():
        if path is None:
            continue
        real = os.path.realpath(path)
        # A device or a pipe may serve several purposes.
        if real in known and (Path(real).is_file() or not Path(real).exists()):
            raise UsageError(f"{known[real]} and {what} would be the same file: {path}")
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
