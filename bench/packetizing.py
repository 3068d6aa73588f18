"""The packetizers alone: near branches per second, in Python and in Rust."""

from __future__ import annotations

import random
import re
import shutil
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clock

ROOT = Path(__file__).resolve().parent.parent
CODE, LIBRARY = 0x5555_5555_1000, 0x7FFF_F7C0_0000
TURNS = 2_000
MILLIONS = 20
_LINE = re.compile(r"(?P<what>.*?) +(?P<millions>[0-9.]+) million branches a second.*")


def measure_packetizing(repetitions: int) -> list[dict[str, Any]]:
    """Return rows {"what", "branches_per_second"} by CPU time."""
    speeds = {
        "Python, conditional branches": [conditionals() for _ in range(repetitions)],
        "Python, 20 near branches of all kinds": [all_kinds() for _ in range(repetitions)],
    }
    rows = [
        {"what": what, "branches_per_second": statistics.median(found)}
        for what, found in speeds.items()
    ]
    return rows + bulk()


def conditionals() -> float:
    """Return near branches per second if all are conditional."""
    cpu = processor()
    taken = [random.getrandbits(1) == 1 for _ in range(20 * TURNS)]
    target, following = CODE + 0x40, CODE + 2

    def work() -> None:
        clock = 0
        for each in taken:
            clock += 5
            cpu.at(clock)
            cpu.conditional(CODE, following, target, each)

    return speed(work, len(taken))


def all_kinds() -> float:
    """Return near branches per second of the loop in the Rust example: 16 conditional branches, a
    direct and an indirect call, and their compressed returns.
    """
    cpu = processor()
    words = [random.getrandbits(64) for _ in range(TURNS)]
    tail = ("call", "ret", "indirect_call", "ret")

    def work() -> None:
        clock = 0
        for word in words:
            for group, kind in enumerate(tail):
                for site in range(4 * group, 4 * group + 4):
                    clock += 1 + (word >> 2 * site & 7)
                    cpu.at(clock)
                    ip = CODE + 32 * site
                    cpu.conditional(ip, ip + 2, ip + 0x400, word >> 44 + site & 1 == 1)
                clock += 2
                cpu.at(clock)
                if kind == "call":
                    cpu.call(CODE + 0x200, CODE + 0x205, CODE + 0x900)
                elif kind == "indirect_call":
                    cpu.indirect_call(CODE + 0x300, CODE + 0x302, LIBRARY + (word & 0xFFF0))
                else:
                    cpu.ret(CODE + 0x910, CODE + (0x205 if group == 1 else 0x302))

    return speed(work, 20 * TURNS)


def processor() -> Any:
    """Return a processor that traces user mode with the default options of `rtit record`."""
    from rtit.capture.options import PtOptions
    from rtit.capture.ptrace.recorder import OutputSchemeSetup
    from rtit.processor import ArchState, Processor
    from rtit.registers import FULL, Msr
    from rtit.unit.memory import Memory

    memory = Memory(observer=lambda _address, _data: None)
    cpu = Processor(profile=FULL, memory=memory, arch=ArchState.user64(cpl=0))
    output = OutputSchemeSetup()
    output.install_output(cpu, memory)
    options = PtOptions.parse("intel_pt//u", profile=FULL)
    cpu.set_msr(Msr.CTL, options.rtit_ctl | output.ctl_bits | 1)
    cpu.resume(CODE)
    return cpu


def speed(work: Callable[[], None], branches: int) -> float:
    seconds, _ = clock.own_cpu(work)
    return branches / seconds


def bulk() -> list[dict[str, Any]]:
    """Run the benchmark of the Rust packetizer."""
    cargo = shutil.which("cargo")
    if cargo is None:
        print("without cargo: the Rust packetizer is not measured")
        return []
    command = [cargo, "run", "--release", "--quiet", "-p", "rtit-unit", "--example", "bench"]
    done = subprocess.run(
        [*command, str(MILLIONS)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [
        {
            "what": f"Rust, {found['what']}",
            "branches_per_second": 1e6 * float(found["millions"]),
        }
        for line in done.stdout.splitlines()
        if (found := _LINE.fullmatch(line))
    ]
