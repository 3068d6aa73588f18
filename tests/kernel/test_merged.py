"""Recordings with guests merged by `perf inject`: code and threads of host and guests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from differential.oracles import perf
from kernel import made
from kernel.merged import AT, USER, Guest, Host, Process, merge_recordings, write_guest, write_host
from rtit.cli.main import main
from rtit.trace import Trace

ONE, TWO = Process(7, "one"), Process(8, "two")


def guests(count: int) -> list[Guest]:
    """Return guests whose processes have the same pids, page tables and addresses."""
    programs = [[ONE, TWO], [Process(7, "two"), Process(8, "one")]]
    return [
        Guest(500 + 100 * n, 501 + 100 * n, 0x7000 + 0x1000 * n, programs[n]) for n in range(count)
    ]


def run_guests(host: Host) -> Host:
    for guest in (*host.guests, *reversed(host.guests)):
        one, two = guest.processes
        host.run(guest, one)
        host.run(guest, two, one, two)
        host.run(guest, two)
        host.run(guest, one, two)
    return host


def write_merged_recording(host: Host, folder: Path) -> Path:
    """Write the host's recording with those of the guests; guest files are below `mount`."""
    if shutil.which("perf") is None:
        pytest.skip("perf is not installed")
    data = write_host(host, folder / "host")
    for guest in host.guests:
        own = write_guest(guest, folder / f"guest-{guest.pid}")
        data = merge_recordings(data, own, guest.pid, folder / f"with-{guest.pid}")
        for each in guest.processes:
            built = made.user(each.program).path
            there = folder / "mount" / str(guest.pid) / built.relative_to("/")
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(built, there)
    return data


def executed_instructions(trace: Trace) -> list[tuple[int, int, int]]:
    """Return (pid of the machine, pid in the guest or 0 in the host, address) of each
    instruction.
    """
    (stream,) = trace.streams
    columns = stream.instructions().columns()
    rows = zip(*(columns[name].tolist() for name in ("pid", "guest_pid", "ip")), strict=True)
    return [(pid, max(guest, 0), ip) for pid, guest, ip in rows]


@pytest.mark.parametrize("count", [1, 2])
def test_host_and_guests_execute_their_own_code(count: int, tmp_path: Path) -> None:
    """Also if two machines share a CPU: each has its own kernel and processes."""
    host = run_guests(Host(guests(count)))
    data = write_merged_recording(host, tmp_path)
    with Trace(data, guest_mount=tmp_path / "mount") as trace:
        assert executed_instructions(trace) == host.ran
        assert not any(span.is_gap for stream in trace.streams for span in stream.ledger())
        assert trace.image_problems == []
        named = {(guest.pid, each.pid): each for guest in host.guests for each in guest.processes}
        assert trace.guest_comms == {key: f"made-{each.program}" for key, each in named.items()}


def test_perf_decodes_same_guest_path(tmp_path: Path) -> None:
    """The same path of the same threads. In perf, code belongs to the next thread from the second
    instruction after a MOV CR3 on, and the VM entry belongs to the guest.
    """
    host = run_guests(Host(guests(1)))
    data = write_merged_recording(host, tmp_path)
    words = ["--itrace=i0nse", "-F", "machine_pid,tid,ip", f"--guestmount={tmp_path / 'mount'}"]
    listed = perf.script(data, words).splitlines()
    assert not any("error" in line for line in listed)
    theirs = [
        (int(line.rpartition("VCPU:")[2].split()[-2]), "VM:" in line, int(line.split()[-1], 16))
        for line in listed
    ]
    with Trace(data, guest_mount=tmp_path / "mount") as trace:
        columns = trace.streams[0].instructions().columns()
    names = ("tid", "guest_tid", "ip")
    ours = list(zip(*(columns[name].tolist() for name in names), strict=True))
    assert [ip for *_, ip in theirs] == [ip for *_, ip in ours]
    for (tid, inside, ip), (host_tid, guest_tid, _) in zip(theirs, ours, strict=True):
        if ip < 1 << 63:
            assert (tid, inside) == (guest_tid, True)
        elif ip == AT:
            assert tid == (guest_tid if inside else host_tid)
            assert inside is (guest_tid >= 0)


def test_guest_files_differ_from_host_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host may have other files at the same paths."""
    host = run_guests(Host(guests(1)))
    data = write_merged_recording(host, tmp_path)
    kernels = [row for row in host.ran if row[2] > USER + 0x1000]
    with Trace(data) as trace:
        found = executed_instructions(trace)
        assert set(found) == set(kernels)
        assert all(Path(made.user(each).path).exists() for each in ("one", "two"))
    assert main(["info", str(data)]) == 3
    text = capsys.readouterr().out
    assert "guest 500:   records of 1 of its CPUs; 2 threads: made-one, made-two" in text
    path = str(made.user("one").path)
    assert f"[guest 500]{path} (build id not known): the file does not exist" in text
    brought = [f"--map=[guest 500]{path.rpartition('/')[0]}={path.rpartition('/')[0]}"]
    assert main(["info", str(data), *brought]) == 0


def test_link_out_of_guest_is_refused(tmp_path: Path) -> None:
    data = write_merged_recording(run_guests(Host(guests(1))), tmp_path)
    built = made.user("one").path
    there = tmp_path / "mount" / "500" / built.relative_to("/")
    there.unlink()
    there.symlink_to(built)
    with Trace(data, guest_mount=tmp_path / "mount") as trace:
        assert {row[1] for row in executed_instructions(trace) if row[2] < 1 << 63} == {TWO.pid}
        assert any("lead out of the guest" in str(each) for each in trace.image_problems)


def test_listing_and_pack_have_code_of_guests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = run_guests(Host(guests(2)))
    data, pack = write_merged_recording(host, tmp_path), tmp_path / "pack"
    mount = f"--guestmount={tmp_path / 'mount'}"
    fields = ["--fields", "pid,guest_pid,guest_comm,ip,sym"]
    assert main(["instructions", str(data), mount, *fields]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines()]
    comms = {(guest.pid, each.pid): each for guest in host.guests for each in guest.processes}
    for (pid, inside, ip), row in zip(host.ran, rows, strict=True):
        name = f"made-{comms[pid, inside].program}" if inside else "-"
        assert row[:4] == [str(pid), str(inside) if inside else "-", name, f"{ip:x}"]
        symbol = "_start" if ip < 1 << 63 else "_text"
        assert row[4].startswith(symbol)
    assert main(["pack", str(data), mount, "-o", str(pack)]) == 0
    for folder in ("mount", "host", "with-500", "with-600"):
        shutil.rmtree(tmp_path / folder)
    capsys.readouterr()
    assert main(["instructions", str(pack), *fields]) == 0
    assert capsys.readouterr().out == text


def test_reports_name_guest_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Functions of all threads; a host thread that runs a guest has the guest's name."""
    host = run_guests(Host(guests(2)))
    data = write_merged_recording(host, tmp_path)
    mount = f"--guestmount={tmp_path / 'mount'}"
    assert main(["report", str(data), mount]) == 0
    assert "one)" in capsys.readouterr().out
    with Trace(data, guest_mount=tmp_path / "mount") as trace:
        for stream in trace.threads:
            found = [row for part in stream.instructions() for row in part.ip.tolist()]
            assert found == [ip for pid, _, ip in host.ran if pid == stream.pid]
