"""Sleep and system management mode of a whole system, in power event trace and event trace.

A boot runs a module that executes MWAIT and requests an SMI, and sleeps until a timer interrupts.
"""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import pytest

from end_to_end.test_system_boot import SCRIPT, Boot, record_boot
from support.boot import build_module
from support.recordings import RTIT

MODULE = """
#include <linux/module.h>
#include <asm/io.h>

static u64 monitored;

noinline void wait_by_mwait(void)
{
	asm volatile("monitor" : : "a"(&monitored), "c"(0), "d"(0));
	asm volatile("mwait" : : "a"(0x21), "c"(0));
}

noinline void request_smi(void)
{
	outb(0, 0xb2);
}

static int __init run_events(void)
{
	wait_by_mwait();
	request_smi();
	return 0;
}

module_init(run_events);
MODULE_LICENSE("GPL");
"""
"""C3 with sub-state 1, and the port at which the firmware of the machine q35 handles an SMI."""

SLEEP = "busybox sleep 0.2"


@functools.cache
def lines_of(boot: Boot, command: str, *options: str) -> list[str]:
    """Return what a command of rtit prints about the boot."""
    words = [*RTIT, command, "-i", str(boot.data), *options]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def events_of(boot: Boot, *names: str) -> list[dict[str, str]]:
    """Return the events of these names, with their fields and `name`, in order."""
    found = []
    for line in lines_of(boot, "events"):
        words = line.split()[2:]
        if words and words[0] in names:
            fields = dict(word.split("=", 1) for word in words[1:])
            found.append({"name": words[0], **fields})
    return found


def code_of(boot: Boot, function: str) -> list[tuple[int, str]]:
    """Return the executed instructions of a function: address and mnemonic."""
    lines = lines_of(boot, "instructions", "--function", function, "--fields", "ip,asm")
    return [(int(ip, 16), asm) for ip, asm, *_ in map(str.split, lines)]


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """A boot with power event trace and event trace."""
    folder = tmp_path_factory.mktemp("boot")
    module = build_module(folder, "events", MODULE)
    script = f"{SCRIPT}\nbusybox insmod /events.ko\n{SLEEP}"
    event = ("-e", "intel_pt/pwr_evt,event/")
    return record_boot(folder, *event, script=script, files={"events.ko": module})


@pytest.mark.slow
def test_boot_with_sleep_and_smi_is_decoded_as_executed(boot: Boot) -> None:
    assert boot.verified_instructions() > 100_000_000


@pytest.mark.slow
def test_hlt_sleeps_in_c1_until_an_interrupt(boot: Boot) -> None:
    """Table 33-57, rows 5 and 7."""
    events = events_of(boot, "sleep", "wake")
    assert [each["name"] for each in events] == ["sleep", "wake"] * (len(events) // 2)
    [hlt] = {ip for ip, name in code_of(boot, "native_safe_halt") if name == "hlt"}
    sleeps = [each for each in events if each.get("at") == hex(hlt)]
    assert sleeps
    assert {(each["state"], each["sub_state"]) for each in sleeps} == {("C1", "0")}
    assert {each["reasons"] for each in events if each["name"] == "wake"} == {"interrupt"}


@pytest.mark.slow
def test_mwait_sleeps_in_the_state_of_its_hints(boot: Boot) -> None:
    """Table 33-57, row 4."""
    [mwait] = [ip for ip, name in code_of(boot, "wait_by_mwait") if name == "mwait"]
    [sleep] = [each for each in events_of(boot, "sleep") if each.get("at") == hex(mwait)]
    assert (sleep["state"], sleep["sub_state"]) == ("C3", "1")
    assert int(sleep["hints"]) == 0x21


@pytest.mark.slow
def test_smi_disables_the_trace_until_rsm(boot: Boot) -> None:
    """Tables 33-56, rows 9 and 10, and 33-59, rows 10 and 11."""
    assert [name for _, name in code_of(boot, "request_smi")].count("out") == 1
    events = events_of(boot, "SMI", "RSM", "disabled", "enabled")
    [smi] = [row for row, each in enumerate(events) if each["name"] == "SMI"]
    names = [each["name"] for each in events[smi : smi + 4]]
    assert sorted(names) == ["RSM", "SMI", "disabled", "enabled"]
    [disabled] = [each for each in events[smi : smi + 4] if each["name"] == "disabled"]
    [enabled] = [each for each in events[smi : smi + 4] if each["name"] == "enabled"]
    # QEMU delivers the SMI after a block, which may be that of the caller.
    assert events[smi]["at"] == disabled["at"] == enabled["ip"]


@pytest.mark.slow
def test_sleep_of_an_untraced_kernel_has_no_address(tmp_path: Path) -> None:
    """Table 33-57, row 3."""
    script = f"{SCRIPT}\n{SLEEP}"
    boot = record_boot(tmp_path, "-e", "intel_pt/pwr_evt/u", script=script)
    assert boot.verified_instructions() > 1_000_000
    sleeps = events_of(boot, "sleep")
    assert sleeps
    assert not any("at" in each for each in sleeps)
