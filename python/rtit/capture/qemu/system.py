"""A recording of a whole system: qemu-system-x86_64 runs a machine.

The plugin has a trace unit for each processor, which traces the kernel and all programs. The plugin
also reads QEMU's log, so that QEMU's own options -d and -D cannot be used. The recording starts at
the 32-bit entry of the Linux kernel; the firmware before it is not traced. The other processors are
traced from their first 32-bit code after that.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rtit.capture.qemu.installation import QEMU_ENVIRONMENT, QemuInstallation, find_plugin
from rtit.capture.qemu.plugin_protocol import plugin_settings
from rtit.capture.qemu.qemu_process import QemuProcess
from rtit.capture.request import TRUTH_FORMS, RecordRequest, check_program, find_program
from rtit.errors import ImageError, RecordError, UsageError
from rtit.image.kernel.boot_image import BootImage, Symbol

if TYPE_CHECKING:
    from rtit.capture.qemu.session import QemuSession

QEMU_SYSTEM = "qemu-system-x86_64"
_TIMEOUT = 20.0
_OLDEST_VERSION = (7, 2)
_CR3_FILTER = 1 << 7
"""IA32_RTIT_CTL.CR3Filter."""
_LOG_NAME = "rtit-log"
"""The name that the plugin recognizes as that of QEMU's log."""
_NO_KVM = "rtit records code that QEMU translates, which KVM bypasses"
_FORBIDDEN = {
    "-d": "rtit reads the log of QEMU itself",
    "-D": "rtit reads the log of QEMU itself",
    "-S": "the machine would wait for a command and run nothing",
    "-enable-kvm": _NO_KVM,
}


@dataclass(frozen=True, slots=True)
class KernelBoot:
    """The kernel that QEMU loads: paths of the bzImage and the initrd, and the command line."""

    kernel: str
    initrd: str | None = None
    append: str = ""
    cpus: int = 1

    def command(self) -> list[str]:
        """Return the command of a machine with this kernel and a serial console."""
        machine = ["-M", "q35", "-m", "256", "-cpu", "max", "-nodefaults", "-no-reboot"]
        console = ["-display", "none", "-serial", "stdio"]
        initrd = ["-initrd", self.initrd] if self.initrd is not None else []
        kernel = ["-kernel", self.kernel, *initrd, "-append", self.append]
        cpus = ["-smp", str(self.cpus)] if self.cpus > 1 else []
        return [QEMU_SYSTEM, *machine, *cpus, *console, *kernel]


@dataclass(frozen=True, slots=True)
class SystemGuest:
    """A machine that QEMU can start: QEMU's arguments without its name, and its environment."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    cwd: Path | str | None

    @property
    def qemu_variables(self) -> list[str]:
        """The variables for QEMU itself, which are all that it reads."""
        return [
            f"{name}={value}"
            for name, value in self.environment.items()
            if name.startswith(QEMU_ENVIRONMENT)
        ]

    def command(self, qemu: Path, folder: str) -> list[str]:
        """Return the command of QEMU with the plugin in the recording folder."""
        log = ["-d", "int,mmu", "-D", f"{folder}/{_LOG_NAME}"]
        ending = [] if "-no-reboot" in self.arguments else ["-no-reboot"]
        return [str(qemu), *self.arguments, *ending, "-plugin", f"{folder}/plugin.so", *log]

    def qemu_environment(self, folder: str) -> dict[str, str]:
        """Return the environment of the QEMU process, with the recording folder."""
        return {
            **self.environment,
            "RTIT_QEMU_FOLDER": folder,
            "RTIT_QEMU_MASK": "0",
            "LD_PRELOAD": f"{folder}/plugin.so",
        }


@dataclass(frozen=True, slots=True)
class LinuxKernel:
    """The symbols of a Linux kernel, and what the plugin needs to see switches of threads."""

    symbols: list[Symbol]
    layout: tuple[int, ...]
    """Addresses of _text and __switch_to, and offsets of pid, tgid and comm in task_struct."""
    module_layout: tuple[int, ...] | None
    """Address of do_init_module, and offsets of `_MODULE_FIELDS`; None if they are unknown."""
    program_layout: tuple[int, ...] | None
    """Addresses of `_PROGRAM_FUNCTIONS`, and offsets of `_PROGRAM_FIELDS`; None if they are
    unknown."""

    @property
    def settings(self) -> str:
        """The lines of the plugin's settings file."""
        lines = [f"kernel={' '.join(map(str, self.layout))}\n"]
        if self.module_layout is not None:
            lines.append(f"modules={' '.join(map(str, self.module_layout))}\n")
        if self.program_layout is not None:
            lines.append(f"programs={' '.join(map(str, self.program_layout))}\n")
        return "".join(lines)


_TASK_FIELDS = [("task_struct", field) for field in ("pid", "tgid", "comm")]
_MODULE_FIELDS = [
    ("module", "name"),
    ("module", "kallsyms"),
    ("mod_kallsyms", "symtab"),
    ("mod_kallsyms", "num_symtab"),
    ("mod_kallsyms", "strtab"),
]
_PROGRAM_FUNCTIONS = ("perf_event_mmap", "wake_up_new_task", "__set_task_comm")
_PROGRAM_FIELDS = [
    [("task_struct", "mm")],
    [("mm_struct", "pgd")],
    [("vm_area_struct", "vm_start")],
    [("vm_area_struct", "vm_end")],
    [("vm_area_struct", "vm_pgoff")],
    [("vm_area_struct", "vm_flags")],
    [("vm_area_struct", "vm_file")],
    [("vm_area_struct", "vm_mm")],
    [("file", "f_path"), ("path", "mnt")],
    [("file", "f_path"), ("path", "dentry")],
    [("dentry", "d_parent")],
    [("dentry", "d_name"), ("qstr", "name")],
    [("mount", "mnt")],
    [("mount", "mnt_parent")],
    [("mount", "mnt_mountpoint")],
    [("vfsmount", "mnt_root")],
]
"""Fields, each with the structures that it is in. The plugin needs them in this order."""
_NO_SYMBOLS = (
    "the kernel's symbols are unknown, so functions have no names, and all threads count as one: "
    "rtit reads them from a bzImage after -kernel that has BTF"
)


def _file_of_option(request: RecordRequest, option: str) -> Path | None:
    """Return the path that an option of QEMU names."""
    words = list(request.argv)
    if option not in words[:-1]:
        return None
    return Path(request.cwd or ".") / words[words.index(option) + 1]


def _read_kernel(request: RecordRequest) -> LinuxKernel | None:
    """Return the kernel of QEMU's option -kernel; None if its symbols cannot be read."""
    path = _file_of_option(request, "-kernel")
    if path is None:
        return None
    try:
        image = BootImage(path)
        symbols = image.symbols()
    except ImageError:
        return None
    addresses = {name: address for address, _, name in symbols}
    program_fields = [field for path in _PROGRAM_FIELDS for field in path]
    offsets = image.field_offsets([*_TASK_FIELDS, *_MODULE_FIELDS, *program_fields])
    try:
        layout = [addresses[name] for name in ("_text", "__switch_to")]
        layout += [offsets[field] for field in _TASK_FIELDS]
    except KeyError:
        return None
    modules = programs = None
    with contextlib.suppress(KeyError):
        modules = (addresses["do_init_module"], *(offsets[field] for field in _MODULE_FIELDS))
    with contextlib.suppress(KeyError):
        programs = (
            *(addresses[name] for name in _PROGRAM_FUNCTIONS),
            *(sum(offsets[field] for field in path) for path in _PROGRAM_FIELDS),
        )
    return LinuxKernel(symbols, tuple(layout), modules, programs)


def find_system_qemu(request: RecordRequest) -> QemuInstallation:
    """Return the system emulator that the request names. Raises RecordError, UsageError."""
    name = Path(request.argv[0]).name
    if name != QEMU_SYSTEM:
        raise UsageError(f"--system needs the command of {QEMU_SYSTEM}, not of {name!r}")
    _check_qemu_arguments(request)
    try:
        check_program(request.argv, env=request.env, cwd=request.cwd)
    except RecordError as error:
        if error.exit_code != 127:
            raise
        message = f"{request.argv[0]} is not installed (Debian and Ubuntu: qemu-system-x86)"
        raise RecordError(message, 127) from error
    plugin = find_plugin()
    if plugin is None:
        raise RecordError("the QEMU plugin of rtit is not installed")
    qemu = Path(find_program(request.argv[0], request.env))
    try:
        answer = subprocess.run(
            [qemu, "--version"], capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RecordError(f"{qemu} cannot be run: {error}") from error
    version = re.search(r"version ((\d+)\.(\d+)\S*)", answer.stdout)
    if version is None:
        raise RecordError(f"{qemu} is not QEMU")
    if (int(version[2]), int(version[3])) < _OLDEST_VERSION:
        raise RecordError(
            f"{qemu} is version {version[1]}, but rtit records whole systems only with QEMU 7.2 "
            "and later"
        )
    return QemuInstallation(qemu, version[1], plugin)


def _check_qemu_arguments(request: RecordRequest) -> None:
    """Raise UsageError for options that a recording excludes, RecordError for a missing file."""
    for argument, value in pairwise([*request.argv[1:], ""]):
        option = f"-{argument.lstrip('-')}" if argument.startswith("-") else ""
        reason = _FORBIDDEN.get(option)
        accelerator = value if option == "-accel" else value.partition("accel=")[2]
        if option in ("-accel", "-machine", "-M") and accelerator.startswith("kvm"):
            reason = _NO_KVM
        if reason is not None:
            words = argument if option in _FORBIDDEN else f"{argument} {value}"
            raise UsageError(f"{QEMU_SYSTEM} {words} cannot be used with --system: {reason}")
        if option == "-kernel" and not Path(request.cwd or ".", value).is_file():
            raise RecordError(
                f"{option} {value}: no such file (unpack a kernel from a package, on Debian and "
                "Ubuntu linux-image-*: apt-get download, dpkg -x)"
            )


def start_system(request: RecordRequest, installation: QemuInstallation) -> QemuSession:
    """Start a machine under QEMU and return its session.

    Raises UsageError for requests that this back end does not support, RecordError if the machine
    cannot be started (exit codes 125, 126, 127).
    """
    kernel = _read_kernel(request)
    plan = request.plan_recording(kernel=() if kernel is None else kernel.symbols)
    settings = plugin_settings(
        plan.options,
        "none" if request.truth is None else "blocks",
        TRUTH_FORMS[request.truth_form or "hashes"],
        plan.filters,
        plan.window,
        plan.size_limits,
        plan.time,
    )
    if request.cr3 is not None:
        ctl = plan.options.rtit_ctl | _CR3_FILTER
        settings += f"ctl={ctl}\ncr3_match={request.cr3}\n"
    if kernel is not None:
        settings += kernel.settings
    environment = dict(os.environ if request.env is None else request.env)
    guest = SystemGuest(request.argv[1:], environment, request.cwd)
    qemu = QemuProcess(installation, settings, guest)
    try:
        from rtit.capture.options import describe_time_model
        from rtit.capture.qemu.session import QemuSession
        from rtit.capture.qemu.system_sink import SystemRecordingSink
        from rtit.capture.store.recording_writer import open_writer, replace_output_file
        from rtit.perfdata import SwitchRecords

        with replace_output_file(plan.path):
            writer = open_writer(
                plan,
                time=f"{describe_time_model(plan.time)}, one clock for each processor",
                switches=SwitchRecords.CPU_WIDE,
                backend=f"qemu-system {installation.version}",
                system="whole machine",
            )
            symbols = kernel.symbols if kernel is not None else ()
            sink = SystemRecordingSink(
                writer,
                request.truth,
                plan.size_limits,
                plan.time,
                symbols,
                _file_of_option(request, "-initrd"),
                plan.filters,
            )
            if kernel is None:
                sink.totals.warnings.append(_NO_SYMBOLS)
            session = QemuSession(plan, sink, qemu)
            try:
                session.wait_for_start()
            except BaseException:
                session.abandon()
                raise
    except BaseException:
        qemu.abandon()
        raise
    return session
