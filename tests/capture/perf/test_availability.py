"""Whether PT hardware can be used, on made machines: the reason and what to do, in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.capture.options import PtOptions
from rtit.capture.perf.availability import (
    PMUS,
    PerfInstallation,
    describe_kernel_limits,
    find_perf,
    reason_for_no_hardware,
    reason_for_no_permission,
)
from rtit.cli.main import main
from rtit.errors import UsageError
from support.sysfs import MachineFactory, machine

__all__ = ["machine"]


@pytest.fixture
def perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "perf"
    path.write_text("#!/bin/sh\necho perf version 6.1.192\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return path


@pytest.mark.parametrize(
    ("cpu", "words"),
    [
        (
            {"vendor_id": "AuthenticAMD", "model name": "AMD EPYC"},
            ["AMD EPYC", "not an Intel processor"],
        ),
        ({"flags": "fpu hypervisor intel_pt"}, ["virtual machine", "pt_mode=1"]),
        ({"flags": "fpu vme"}, ["older than Broadwell", "BIOS"]),
        ({}, ["has PT, but the kernel", "Linux 4.2"]),
    ],
)
def test_missing_pmu_names_the_cause(
    cpu: dict[str, str], words: list[str], machine: MachineFactory
) -> None:
    machine(pmu=False, **cpu)
    answer = find_perf()
    assert isinstance(answer, str)
    assert all(word in answer for word in words), answer
    assert answer == reason_for_no_hardware()


def test_missing_sysfs_is_reported(machine: MachineFactory) -> None:
    root = machine(pmu=False)
    (root / PMUS).rmdir()
    assert "is not visible" in str(reason_for_no_hardware())


def test_missing_perf_names_the_packages(
    machine: MachineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine()
    monkeypatch.setenv("PATH", "/nowhere")
    assert "perf is not installed" in str(find_perf())


def test_broken_perf_is_reported(machine: MachineFactory, perf: Path) -> None:
    machine()
    perf.write_text("#!/bin/sh\necho WARNING: perf not found for kernel 6.8.0-49 >&2\nexit 2\n")
    answer = str(find_perf())
    assert "not found for kernel 6.8.0-49" in answer
    assert "install the perf of the running kernel" in answer


# documented in the kernel: Documentation/admin-guide/sysctl/kernel.rst; 3 and 4 are Debian's and
# Ubuntu's, which leave nothing to the unprivileged
@pytest.mark.parametrize(
    ("paranoid", "user", "kernel", "everybody"),
    [
        ("-1", True, True, True),
        ("0", True, True, True),
        ("1", True, True, False),
        ("2", True, False, False),
        ("3", False, False, False),
        ("4", False, False, False),
    ],
)
def test_perf_event_paranoid_limits_who_may_trace(
    paranoid: str, user: bool, kernel: bool, everybody: bool, machine: MachineFactory
) -> None:
    machine(paranoid=paranoid)
    answers = [
        reason_for_no_permission(),
        reason_for_no_permission(kernel=True),
        reason_for_no_permission(all_cpus=True),
    ]
    assert [each is None for each in answers] == [user, kernel, everybody]
    for answer, value in zip(answers, (2, 1, 0), strict=True):
        if answer is not None:
            assert f"perf_event_paranoid is {paranoid}" in answer
            assert f"sysctl kernel.perf_event_paranoid={value}`" in answer
    # CAP_PERFMON, CAP_SYS_ADMIN
    for capability in (38, 21):
        machine(paranoid=paranoid, capabilities=1 << capability)
        assert reason_for_no_permission(kernel=True, all_cpus=True) is None
    # CAP_NET_ADMIN
    machine(paranoid=paranoid, capabilities=1 << 12)
    assert (reason_for_no_permission() is None) == user


def test_kernel_without_perf_events_is_reported(machine: MachineFactory, perf: Path) -> None:
    machine(paranoid=None)
    assert "no perf events" in str(find_perf())


def test_pmu_caps_become_a_profile(machine: MachineFactory, perf: Path) -> None:
    """The model of the profile, the capabilities and the legal periods are those of the files."""
    machine()
    found = find_perf()
    assert isinstance(found, PerfInstallation)
    assert (found.perf, found.version) == (perf, "6.1.192")
    profile = found.profile
    assert profile is not None
    assert (profile.family, profile.model, profile.stepping) == (6, 94, 3)
    assert (profile.psb_cyc, profile.mtc, profile.ptwrite, profile.ranges) == (True, True, False, 2)
    options = PtOptions.parse("intel_pt/mtc_period=9/", profile=profile, user_only=False)
    assert options.mtc_period == 9
    for wrong in ("ptw", "event", "notnt", "pwr_evt", "psb_period=6", "mtc_period=1"):
        with pytest.raises(UsageError, match=r"not supported"):
            PtOptions.parse(f"intel_pt/{wrong}/u", profile=profile)


def test_kernel_limits_are_those_of_sysctl_and_capabilities(machine: MachineFactory) -> None:
    """Documentation/admin-guide/sysctl/kernel.rst: CAP_IPC_LOCK (14) has no limit, and
    kptr_restrict 1 hides addresses from those without CAP_SYSLOG (34), 2 from all; CAP_PERFMON (38)
    is neither.
    """
    machine()
    (line,) = describe_kernel_limits()
    assert "516 KB per CPU (perf_event_mlock_kb), plus 8,192 KB" in line
    for free in ({"paranoid": "-1"}, {"capabilities": 1 << 14}, {"memlock": "unlimited"}):
        machine(**free)
        assert describe_kernel_limits() == []
    machine(capabilities=1 << 38)
    assert describe_kernel_limits() == [line]
    for restrict, capabilities, told_of in (
        ("1", 0, True),
        ("1", 1 << 38, True),
        ("1", 1 << 34, False),
        ("2", 1 << 34, True),
    ):
        machine(paranoid="-1", capabilities=capabilities, kptr_restrict=restrict)
        assert (
            any(f"kptr_restrict is {restrict}" in each for each in describe_kernel_limits())
            is told_of
        )
    machine(mlock_kb="none")
    assert describe_kernel_limits() == []


def test_doctor_reports_missing_hardware(
    machine: MachineFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(pmu=False, flags="fpu hypervisor")
    assert main(["doctor"]) == 0
    lines = {line[:21].strip(): line[23:] for line in capsys.readouterr().out.splitlines()}
    assert lines["PT hardware"].startswith(
        "no   not needed, because rtit generates PT in software; this virtual"
    )
    assert lines["record --backend perf"] == "-    needs PT hardware"
    assert lines["symbols"].startswith("yes  ")


def test_doctor_reports_hardware(
    machine: MachineFactory, perf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine()
    assert main(["doctor"]) == 0
    lines = {line[:21].strip(): line[23:] for line in capsys.readouterr().out.splitlines()}
    assert lines["PT hardware"].startswith("yes  available in the kernel")
    assert lines["record --backend perf"].startswith(f"yes  {perf} 6.1.192")
    assert "only root may trace the kernel" in lines["record --backend perf"]
    assert "not been tested on PT hardware" in lines["record --backend perf"]
    assert "8,192 KB in total (ulimit -l)" in lines["record --backend perf"]
    machine(paranoid="4")
    assert main(["doctor"]) == 0
    assert "record --backend perf  -    not available: perf_event_paranoid is 4" in (
        capsys.readouterr().out
    )
