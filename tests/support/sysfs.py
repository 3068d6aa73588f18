"""Fake /proc and /sys trees of a machine with Intel PT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.capture.perf import availability
from rtit.capture.perf.availability import PMU, PMUS

MachineFactory = Callable[..., Path]
INTEL = {
    "vendor_id": "GenuineIntel",
    "cpu family": "6",
    "model": "94",
    "model name": "Intel(R) Core(TM) i7-6700K CPU @ 4.00GHz",
    "stepping": "3",
    "flags": "fpu vme tsc_known_freq intel_pt",
}
# A Skylake.
CAPS = {
    "max_subleaf": "1",
    "cr3_filtering": "1",
    "psb_cyc": "1",
    "ip_filtering": "1",
    "mtc": "1",
    "ptwrite": "0",
    "power_event_trace": "0",
    "topa_output": "1",
    "topa_multiple_entries": "1",
    "single_range_output": "1",
    "output_subsys": "0",
    "payloads_lip": "0",
    "num_address_ranges": "2",
    "mtc_periods": "249",
    "cycle_thresholds": "3fff",
    "psb_periods": "3f",
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MachineFactory:
    """Make the files of a machine, and have `rtit.capture.perf.find` read them."""

    def made(
        *,
        pmu: bool = True,
        paranoid: str | None = "2",
        capabilities: int = 0,
        mlock_kb: str = "516",
        memlock: str = "8388608",
        kptr_restrict: str = "0",
        **cpu: str,
    ) -> Path:
        root = tmp_path / "machine"
        files = {
            "proc/cpuinfo": "".join(
                f"{name}\t: {value}\n" for name, value in {**INTEL, **cpu}.items()
            )
            + "\nprocessor\t: 1\nvendor_id\t: nobody\n",
            "proc/sys/kernel/perf_event_mlock_kb": f"{mlock_kb}\n",
            "proc/sys/kernel/kptr_restrict": f"{kptr_restrict}\n",
            "proc/self/limits": "Limit Soft Limit Hard Limit Units\nMax processes 95 95 processes\n"
            f"Max locked memory         {memlock}              {memlock}              bytes\n",
            "proc/self/status": f"Name:\trtit\nCapEff:\t{capabilities:016x}\n",
        }
        if paranoid is not None:
            files["proc/sys/kernel/perf_event_paranoid"] = f"{paranoid}\n"
        if pmu:
            files |= {f"{PMU}/caps/{name}": f"{value}\n" for name, value in CAPS.items()}
        else:
            (root / PMUS).mkdir(parents=True)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        monkeypatch.setattr(availability, "ROOT", root)
        return root

    return made
