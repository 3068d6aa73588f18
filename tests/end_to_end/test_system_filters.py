"""Address filters of a whole system: functions of the kernel, which moves itself, and addresses."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from end_to_end.test_system_boot import Boot, record_boot
from rtit.trace import Trace
from support.boot import QEMU, find_kernel
from support.recordings import RTIT


def traced_functions(boot: Boot, *selected: str) -> set[str]:
    """Return the functions of all decoded instructions, or those of the selected ones."""
    options = [word for name in selected for word in ("--function", name)]
    listing = subprocess.run(
        [*RTIT, "instructions", "-i", str(boot.data), "--fields", "sym", *options],
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.strip().split("+")[0] for line in listing.stdout.splitlines()}


def address_of(boot: Boot, name: str) -> int:
    """Return where the kernel had moved the function `name`."""
    symbols = Path(f"{boot.data}.kallsyms").read_text()
    [address] = re.findall(rf"^([0-9a-f]+) [tT] {name}$", symbols, re.MULTILINE)
    return int(address, 16)


@pytest.mark.slow
def test_filter_traces_the_functions_that_it_names(tmp_path: Path) -> None:
    boot = record_boot(tmp_path, "--filter", "filter vfs_read", "--filter", "filter ksys_write")
    assert boot.verified_instructions() > 100
    assert traced_functions(boot) == {"vfs_read", "ksys_write"}
    with Trace(boot.data) as trace:
        # The recording has the address at which the kernel has put the function.
        assert trace.filter is not None
        assert trace.filter.startswith(f"filter {address_of(boot, 'vfs_read'):#x}/")


@pytest.mark.slow
def test_tracestop_ends_the_trace_before_its_function(tmp_path: Path) -> None:
    boot = record_boot(tmp_path, "--filter", "tracestop rest_init")
    assert boot.verified_instructions() > 100_000_000
    names = ("start_kernel", "rest_init", "kernel_init")
    assert traced_functions(boot, *names) == {"start_kernel"}


@pytest.mark.slow
def test_filter_by_address_selects_code_before_the_kernel_has_moved_itself(tmp_path: Path) -> None:
    # The 32-bit entry of the kernel, where the trace starts.
    boot = record_boot(tmp_path, "--filter", "filter 0x100000/0x200")
    assert 10 < boot.verified_instructions() < 100_000


@pytest.mark.slow
def test_filter_of_interrupts_applies_to_all_processors(tmp_path: Path) -> None:
    words = ("-e", "intel_pt/event/", "--cpus", "2", "--filter", "filter schedule")
    handler = ("--filter", "filter asm_sysvec_apic_timer_interrupt")
    boot = record_boot(tmp_path, *words, *handler)
    assert min(boot.verified_instructions_by_processor()) > 10_000
    assert traced_functions(boot) == {"schedule", "asm_sysvec_apic_timer_interrupt"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("filter vfs_raed", "the kernel has no function named 'vfs_raed'; similar names: vfs_read"),
        ("filter vfs_read @ /bin/ls", "filters of a whole system have no file"),
    ],
)
def test_unknown_functions_and_files_in_filters_are_refused(text: str, message: str) -> None:
    words = ("--filter", text, "--system", "--kernel", str(find_kernel()))
    found = subprocess.run([*RTIT, "record", *words], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert message in found.stderr


def test_functions_in_filters_need_a_kernel_with_symbols() -> None:
    find_kernel()
    words = ("--filter", "filter vfs_read", "--system", "--", QEMU)
    found = subprocess.run([*RTIT, "record", *words], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "functions of the kernel are unknown: rtit reads them from a bzImage" in found.stderr
