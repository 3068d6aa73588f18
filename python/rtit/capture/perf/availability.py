"""Check whether this machine can record PT in hardware; if not, give the reason and the remedy.

The kernel describes its PT driver in /sys/bus/event_source/devices/intel_pt: `caps` has the fields
of CPUID leaf 14H, in hexadecimal (section 33.3.1).
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtit.registers.profiles import Profile

ROOT = Path("/")
"""Where the kernel's files are."""
PMUS = "sys/bus/event_source/devices"
PMU = f"{PMUS}/intel_pt"
_PARANOID = "proc/sys/kernel/perf_event_paranoid"
_MLOCK = "proc/sys/kernel/perf_event_mlock_kb"
_RESTRICT = "proc/sys/kernel/kptr_restrict"
_LOCKED = "Max locked memory"
_TIMEOUT = 20.0
_CAP_IPC_LOCK, _CAP_SYS_ADMIN, _CAP_SYSLOG, _CAP_PERFMON = 14, 21, 34, 38

# names of the kernel's files -> fields of a profile
_FLAGS = {
    "cr3_filtering": "cr3_filtering",
    "psb_cyc": "psb_cyc",
    "ip_filtering": "ip_filtering",
    "mtc": "mtc",
    "ptwrite": "ptwrite",
    "power_event_trace": "power_events",
    "event_trace": "event_trace",
    "tnt_disable": "tnt_disable",
    "topa_output": "topa",
    "topa_multiple_entries": "multi_entry",
    "single_range_output": "single_range",
    "output_subsys": "fabric",
    "payloads_lip": "lip",
}
_NUMBERS = {
    "num_address_ranges": "ranges",
    "mtc_periods": "mtc_periods",
    "cycle_thresholds": "cyc_thresholds",
    "psb_periods": "psb_periods",
}


@dataclass(frozen=True, slots=True)
class PerfInstallation:
    """A perf that can record PT on this machine.

    `profile` has the PT capabilities that the kernel reports; None if it reports none.
    """

    perf: Path
    version: str
    profile: Profile | None

    @property
    def has_kcore(self) -> bool:
        """Whether perf has the option --kcore (version 5.5 and later)."""
        numbers = re.match(r"(\d+)\.(\d+)", self.version)
        return numbers is None or (int(numbers[1]), int(numbers[2])) >= (5, 5)


def find_perf(*, kernel: bool = False, all_cpus: bool = False) -> PerfInstallation | str:
    """Return the perf to record with, or one sentence with the reason and the remedy."""
    problem = reason_for_no_hardware()
    if problem is not None:
        return problem
    perf = shutil.which("perf")
    if perf is None:
        return (
            "perf is not installed (Debian: linux-perf; Ubuntu: linux-tools-generic; Fedora: perf)"
        )
    try:
        result = subprocess.run(
            [perf, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{perf} cannot be run: {getattr(error, 'strerror', None) or error}"
    version = result.stdout.partition("perf version")[2].strip()
    if result.returncode or not version:
        message = (
            result.stderr.strip() or result.stdout.strip() or "no error message"
        ).splitlines()[0]
        return f"{perf} does not work ({message}); install the perf of the running kernel"
    problem = reason_for_no_permission(kernel=kernel, all_cpus=all_cpus)
    return problem or PerfInstallation(Path(perf), version.splitlines()[0], pmu_profile())


def reason_for_no_hardware() -> str | None:
    """Return why the kernel offers no PT, and the remedy; None if it does."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"rtit uses PT hardware only with Linux on x86-64, not with {sys.platform} on " + (
            platform.machine() or "an unknown machine"
        )
    if (ROOT / PMU).is_dir():
        return None
    fields = read_cpuinfo()
    name = fields.get("model name", "unknown processor")
    flags = fields.get("flags", "").split()
    if fields.get("vendor_id") != "GenuineIntel":
        return f"{name} is not an Intel processor, and only Intel processors have PT"
    if "hypervisor" in flags:
        return (
            f"this virtual machine ({name}) has no PT; bare-metal machines have PT, and so have "
            "KVM guests with -cpu host if the host loads kvm_intel with pt_mode=1"
        )
    if "intel_pt" not in flags:
        return (
            f"{name} does not report PT: the processor is older than Broadwell, or the firmware "
            "has disabled PT (look for Processor Trace in the BIOS setup)"
        )
    if not (ROOT / PMUS).is_dir():
        return f"{name} has PT, but /{PMUS} is not visible (is this a container without /sys?)"
    return (
        f"{name} has PT, but the kernel does not provide /{PMU}; Linux 4.2 and newer provide "
        "this directory"
    )


def reason_for_no_permission(*, kernel: bool = False, all_cpus: bool = False) -> str | None:
    """Return why the kernel forbids this process to trace, and the remedy; None if it permits it.

    Only a recording shows the definite answer.
    """
    try:
        paranoid = int((ROOT / _PARANOID).read_text())
    except (OSError, ValueError):
        return f"the kernel has no perf events: /{_PARANOID} cannot be read"
    max_paranoid, target = (
        (0, "all CPUs") if all_cpus else (1, "the kernel") if kernel else (2, "programs")
    )
    if paranoid <= max_paranoid or _has_any_capability(_CAP_SYS_ADMIN, _CAP_PERFMON):
        return None
    return (
        f"perf_event_paranoid is {paranoid}, so only root may trace {target}: run as root, or "
        f"`sudo sysctl kernel.perf_event_paranoid={max_paranoid}`"
    )


def describe_kernel_limits() -> list[str]:
    """Return a sentence for each kernel setting that makes recordings smaller or poorer."""
    return [
        text
        for text in (_describe_aux_buffer_limit(), _warn_of_hidden_kernel_addresses())
        if text is not None
    ]


def _describe_aux_buffer_limit() -> str | None:
    """Return the limit on AUX buffers, which are locked memory; None without a limit.

    The kernel allows each user an amount per CPU, and RLIMIT_MEMLOCK for all CPUs together. Neither
    holds with CAP_IPC_LOCK (Documentation/admin-guide/sysctl/kernel.rst).
    """
    if _has_any_capability(_CAP_IPC_LOCK) or _read_kernel_setting(_PARANOID) == -1:
        return None
    per_cpu, locked = _read_kernel_setting(_MLOCK), _locked_memory_limit()
    if per_cpu is None or locked is None:
        return None
    return (
        f"buffers may take {per_cpu:,} KB per CPU (perf_event_mlock_kb), plus {locked // 1024:,} "
        "KB in total (ulimit -l); for larger buffers, run as root or raise these limits"
    )


def _warn_of_hidden_kernel_addresses() -> str | None:
    """Return a warning if the kernel hides its addresses from this process.

    kptr_restrict 1 hides them from processes without CAP_SYSLOG, 2 from all.
    """
    restrict = _read_kernel_setting(_RESTRICT)
    if not restrict or (restrict == 1 and _has_any_capability(_CAP_SYSLOG)):
        return None
    return (
        f"kptr_restrict is {restrict}, so kernel functions have no names; `sudo sysctl "
        "kernel.kptr_restrict=0` makes the names available"
    )


def _read_kernel_setting(name: str) -> int | None:
    try:
        return int((ROOT / name).read_text())
    except (OSError, ValueError):
        return None


def _locked_memory_limit() -> int | None:
    """RLIMIT_MEMLOCK in bytes; None without a limit."""
    try:
        text = (ROOT / "proc/self/limits").read_text()
    except OSError:
        return None
    lines = (line.removeprefix(_LOCKED) for line in text.splitlines() if line.startswith(_LOCKED))
    words = next(lines, "").split()
    return int(words[0]) if words and words[0].isdecimal() else None


def _has_any_capability(*capabilities: int) -> bool:
    """Return whether this process has any of these capabilities."""
    try:
        status = (ROOT / "proc/self/status").read_text()
        held = int(status.partition("CapEff:")[2].split()[0], 16)
    except (OSError, ValueError, IndexError):
        return os.geteuid() == 0
    return any(held >> capability & 1 for capability in capabilities)


def pmu_profile() -> Profile | None:
    """Return the processor as the kernel describes its PT; None if it does not."""
    caps = ROOT / PMU / "caps"
    found: dict[str, int] = {}
    for name in (*_FLAGS, *_NUMBERS):
        try:
            found[name] = int((caps / name).read_text(), 16)
        except (OSError, ValueError):
            found[name] = 0
    if not any(found.values()):
        return None
    values: dict[str, Any] = {field: bool(found[name]) for name, field in _FLAGS.items()}
    values |= {field: found[name] for name, field in _NUMBERS.items()}
    fields = read_cpuinfo()
    for name, key in (("family", "cpu family"), ("model", "model"), ("stepping", "stepping")):
        values[name] = int(fields[key]) if fields.get(key, "").isdecimal() else 0
    try:
        return Profile("of this machine", **values)
    except ValueError:
        return None


def read_cpuinfo() -> dict[str, str]:
    """Return the fields of /proc/cpuinfo for the first processor."""
    try:
        text = (ROOT / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}
