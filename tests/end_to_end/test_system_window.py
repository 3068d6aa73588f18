"""The recording window of a whole system: from one function of the kernel or address to another."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from end_to_end.test_system_boot import record_boot
from end_to_end.test_system_filters import traced_functions
from support.boot import find_kernel
from support.recordings import RTIT


@pytest.mark.slow
def test_window_goes_from_one_function_to_another(tmp_path: Path) -> None:
    boot = record_boot(tmp_path, "--start-at", "ksys_read", "--stop-at", "ksys_write")
    assert 1000 < boot.verified_instructions() < 100_000_000
    # A function that vfs_read calls is traced, and the one at which the window ends is not.
    names = ("ksys_read", "vfs_read", "ksys_write")
    assert traced_functions(boot, *names) == {"ksys_read", "vfs_read"}


@pytest.mark.slow
def test_window_of_two_processors_begins_on_both(tmp_path: Path) -> None:
    boot = record_boot(tmp_path, "--cpus", "2", "--start-at", "ksys_read")
    assert min(boot.verified_instructions_by_processor()) > 1000


@pytest.mark.slow
def test_window_may_end_at_an_address_before_the_kernel_has_moved_itself(tmp_path: Path) -> None:
    # The kernel's 64-bit entry, 0x200 bytes after the 32-bit one.
    boot = record_boot(tmp_path, "--stop-at", "0x100200")
    assert 10 < boot.verified_instructions() < 100_000


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--start-at", "vfs_raed", "the kernel has no function named 'vfs_raed'; similar names"),
        ("--start-at", "1000", "expected a function of the kernel or an address (0x...)"),
        ("--stop-at", "+1000", "expected a function of the kernel or an address (0x...)"),
        ("--stop-at", "main @ /bin/ls", "filters of a whole system have no file"),
    ],
)
def test_impossible_edges_of_systems_are_refused(option: str, value: str, message: str) -> None:
    words = (option, value, "--system", "--kernel", str(find_kernel()))
    found = subprocess.run([*RTIT, "record", *words], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert message in found.stderr
