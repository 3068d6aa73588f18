"""libipt and stock perf decode the boot of a Linux kernel as executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from differential.oracles import libipt
from differential.oracles.raw import auxtrace, code_changes
from end_to_end.test_system_boot import record_boot
from support.recordings import thread_ends


@pytest.mark.slow
def test_libipt_decodes_a_whole_boot_as_executed(tmp_path: Path) -> None:
    """libipt follows the kernel while it patches itself, and all programs by their CR3.

    Without return compression: the retpolines of the kernel change the return address of a call,
    and libipt's return stack does not notice it.
    """
    try:
        libipt.compiled_with_libipt("ipt_system")
    except libipt.LibiptMissingError as error:
        pytest.skip(str(error))
    boot = record_boot(tmp_path, "-e", "intel_pt/noretcomp/")
    [(_, instructions, chain)] = thread_ends(boot.truth).values()
    [stream] = auxtrace(boot.data)
    changes = code_changes(boot.data)
    assert sum(change.time > 0 for change in changes) > 100
    assert instructions > 100_000_000
    found = libipt.system_path(stream.data, changes)
    assert found == (instructions, chain, 0, "")
